//! Files of settings that can be read only once.

use crate::common::{connect, say, start_with, until};
use hither_server::Config;
use hither_server::config::{ClientCertificates, TlsConfig};
use rcgen::{CertificateParams, KeyPair};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Makes a pipe whose first reader gets this text.
fn pipe(path: &Path, text: String) -> JoinHandle<()> {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    let path = path.to_owned();
    std::thread::spawn(move || {
        let file = RefCell::new(None);
        // Without a reader this fails, instead of waiting for ever.
        let open = || File::options().write(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path).ok();
        until(|| {
            *file.borrow_mut() = open();
            file.borrow().is_some()
        });
        file.take().unwrap().write_all(text.as_bytes()).unwrap();
    })
}

/// Regression: at SIGHUP, and at ACL LOAD, a serving thread waited for somebody to write to the pipe once more.
#[test]
fn what_came_from_a_pipe_is_not_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let [cert_file, key_file, users] = ["server.pem", "server.key", "users.acl"].map(|name| dir.path().join(name));
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(&cert_file, certificate.pem()).unwrap();
    let writers = [pipe(&key_file, key.serialize_pem()), pipe(&users, "user default on nopass ~* &* +@all".to_owned())];
    let tls = TlsConfig { port: 0, cert_file, key_file, ca_cert_file: None, clients: ClientCertificates::No, check_every: Duration::ZERO };
    let server = start_with(Config { threads: 1, tls: Some(tls), aclfile: Some(users), ..Config::default() });
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut client = connect(&server);
    server.shared().reload.store(true, Ordering::Release);
    until(|| !server.shared().reload.load(Ordering::Acquire));
    assert_eq!(say(&mut client, "PING"), "PONG");
    let refused = say(&mut client, "ACL LOAD");
    assert!(refused.contains("users.acl is no regular file"), "{refused}");
    let refused = server.shared().tls.as_ref().unwrap().reload().unwrap_err();
    assert!(refused.contains("server.key is no regular file"), "{refused}");
    server.stop();
}
