//! TLS: certificates, and a connection's bytes with or without encryption.
//!
//! Handshakes run in the event loop and never block it. What a client can make the server hold before its handshake is
//! done is bounded: by rustls (64 KiB of one handshake message), by [`MAX_HANDSHAKES`] at a time, and by
//! [`HANDSHAKE_TIME`].

use super::can_be_read_again;
use crate::config::{ClientCertificates, TlsConfig};
use hither_sync::socket;
use mio::net::TcpStream;
use parking_lot::{Mutex, RwLock};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::fs::Metadata;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of handshakes at a time; further connections are closed at once.
pub const MAX_HANDSHAKES: usize = 1024;
/// A handshake that takes longer is aborted.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Socket reads per read of the connection: records without data must not hold up other clients.
const RECORDS: usize = 8;

/// The files' stamps when they were last read, and when they were last checked.
struct Watch {
    stamps: Stamps,
    looked: Instant,
}

/// Modification time, length and inode of each file; `None`: it cannot be found, or cannot be read more than once.
type Stamps = [Option<(SystemTime, u64, u64)>; 3];

/// The certificates in force, and the number of handshakes under way.
pub struct Tls {
    files: TlsConfig,
    watch: Mutex<Watch>,
    config: RwLock<Arc<ServerConfig>>,
    handshakes: Arc<AtomicUsize>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file is wrong, and why.
    pub fn load(files: TlsConfig) -> std::result::Result<Tls, String> {
        // Stamps first: a change during the read then shows as a change.
        let watch = Mutex::new(Watch { stamps: stamps(&files), looked: Instant::now() });
        let config = RwLock::new(read(&files)?);
        Ok(Tls { files, watch, config, handshakes: Arc::default() })
    }

    /// Reads the files again; existing connections keep what they have.
    ///
    /// # Errors
    /// As for [`Tls::load`], and for files that can be read only once; the certificates in force stay.
    pub fn reload(&self) -> std::result::Result<(), String> {
        *self.watch.lock() = Watch { stamps: stamps(&self.files), looked: Instant::now() };
        let TlsConfig { cert_file, key_file, ca_cert_file, .. } = &self.files;
        [cert_file, key_file].into_iter().chain(ca_cert_file).try_for_each(|path| can_be_read_again(path))?;
        *self.config.write() = read(&self.files)?;
        Ok(())
    }

    /// Whether the files have changed since they were read, even if they were wrong then. Checks at most once in
    /// [`TlsConfig::check_every`].
    pub fn is_changed(&self) -> bool {
        let mut watch = self.watch.lock();
        if watch.looked.elapsed() < self.files.check_every {
            return false;
        }
        watch.looked = Instant::now();
        stamps(&self.files) != watch.stamps
    }

    /// Makes the channel of a new connection.
    ///
    /// # Errors
    /// Too many handshakes are under way, or rustls refuses the session.
    pub fn accept(&self, stream: TcpStream) -> std::result::Result<Channel, String> {
        let before = self.handshakes.fetch_add(1, Ordering::Relaxed);
        let handshake = Handshake(self.handshakes.clone());
        if before >= MAX_HANDSHAKES {
            return Err(format!("{MAX_HANDSHAKES} TLS handshakes are under way"));
        }
        let session = ServerConnection::new(self.config.read().clone()).map_err(|error| format!("TLS: {error}"))?;
        Ok(Channel { stream, tls: Some(Box::new(Session { session, handshake: Some(handshake) })) })
    }

    /// Number of handshakes under way.
    pub fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::Relaxed)
    }
}

/// One handshake under way; counted until it is dropped.
struct Handshake(Arc<AtomicUsize>);

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn stamps(files: &TlsConfig) -> Stamps {
    let stamp = |path: &Path| {
        let found = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        Some((found.modified().ok()?, found.len(), found.ino()))
    };
    [stamp(&files.cert_file), stamp(&files.key_file), files.ca_cert_file.as_deref().and_then(stamp)]
}

fn read(files: &TlsConfig) -> std::result::Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates(&files.cert_file)?;
    let key = PrivateKeyDer::from_pem_file(&files.key_file)
        .map_err(|error| format!("the key for TLS cannot be read from {}: {error}", files.key_file.display()))?;
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| format!("TLS: {error}"))?;
    let builder = match (files.clients, &files.ca_cert_file) {
        (ClientCertificates::No, _) => builder.with_no_client_auth(),
        (_, None) => return Err("clients are to show certificates: give tls-ca-cert-file, or say tls-auth-clients no".to_owned()),
        (wanted, Some(path)) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| format!("a certificate of {} cannot be used: {}", path.display(), why(&error)))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if wanted == ClientCertificates::Optional { verifier.allow_unauthenticated() } else { verifier };
            let verifier = verifier.build().map_err(|error| format!("the certificates of {} cannot be used: {error}", path.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key);
    let config = config
        .map_err(|error| format!("certificate {} and key {}: {}", files.cert_file.display(), files.key_file.display(), why(&error)))?;
    Ok(Arc::new(config))
}

/// What is wrong with one of the server's certificates, which rustls calls the peer's. It has no name for certificates
/// of version 1.
fn why(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(what) = error else { return error.to_string() };
    let what = format!("{what:?}");
    if what.contains("UnsupportedCertVersion") {
        return "it is a certificate of X.509 version 1, which has no extensions; make one of version 3, for example with `openssl x509 -extfile`".to_owned();
    }
    format!("invalid certificate: {what}")
}

fn certificates(path: &Path) -> std::result::Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(|all| all.collect::<std::result::Result<Vec<_>, _>>());
    let all = all.map_err(|error| format!("certificates cannot be read from {}: {error}", path.display()))?;
    if all.is_empty() {
        return Err(format!("there is no certificate in {}", path.display()));
    }
    Ok(all)
}

/// The bytes of a connection, with or without TLS.
pub struct Channel {
    /// The socket.
    pub stream: TcpStream,
    tls: Option<Box<Session>>,
}

struct Session {
    session: ServerConnection,
    /// Present while the handshake is under way.
    handshake: Option<Handshake>,
}

impl Channel {
    /// A channel without encryption.
    pub fn plain(stream: TcpStream) -> Channel {
        Channel { stream, tls: None }
    }

    /// Whether the channel uses TLS: there may be more to read even if the socket is empty.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the TLS handshake is not done yet.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.handshake.is_some())
    }

    /// Reads what has arrived; 0: the end. `WouldBlock`: everything was read.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let Some(tls) = &mut self.tls else { return socket::receive(self.stream.as_fd(), buffer) };
        for _ in 0..RECORDS {
            match tls.session.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The connection was cut without a close notification: no request of it is half done.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                outcome => return outcome,
            }
            if tls.session.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            let outcome = tls.session.process_new_packets();
            // Sends answers of the handshake, or an alert. What does not fit leaves when there is room.
            let sent = send(&mut tls.session, &mut self.stream);
            outcome.map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
            if sent.as_ref().is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
                return sent.map(|()| 0);
            }
            if !tls.session.is_handshaking() {
                tls.handshake = None;
            }
        }
        Err(ErrorKind::Interrupted.into())
    }

    /// Takes bytes to be sent; returns how many it took.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let Some(tls) = &mut self.tls else { return socket::send(self.stream.as_fd(), bytes) };
        send(&mut tls.session, &mut self.stream)?;
        let taken = tls.session.writer().write(bytes)?;
        match send(&mut tls.session, &mut self.stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends what was taken and has not left.
    pub fn flush(&mut self) -> Result<()> {
        self.tls.as_mut().map_or(Ok(()), |tls| send(&mut tls.session, &mut self.stream))
    }

    /// Whether something was taken and has not left.
    pub fn is_pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.wants_write())
    }

    /// Sends the close notification, if there is room for it.
    pub fn finish(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.session.send_close_notify();
            // The connection is closed either way.
            let _ = send(&mut tls.session, &mut self.stream);
        }
    }
}

/// Sends what the session has. Interruptions are handled here: the caller would give the session bytes again that it
/// has already taken.
fn send(session: &mut ServerConnection, stream: &mut TcpStream) -> Result<()> {
    while session.wants_write() {
        match session.write_tls(stream) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate of version 1, as `openssl x509 -req` makes it without extensions, and its key; made for this test.
    const OF_VERSION_1: [&str; 2] = [
        "\
-----BEGIN CERTIFICATE-----
MIIBFTCBvQIUSx7vBe/RVgAXCXmvIanJAhMbQNswCgYIKoZIzj0EAwIwDTELMAkG
A1UEAwwCdjEwIBcNMjYxMTI3MDAyOTA2WhgPMjEyNjExMDMwMDI5MDZaMA0xCzAJ
BgNVBAMMAnYxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEWY4vinoVu29yDs8+
xUJLCyKlGnegIW+2ZHmgzUl5R6w8zqlFY2zWXdmf2pir02XTgFQFsVaUgW/Sblxu
Lc9KOjAKBggqhkjOPQQDAgNHADBEAiB+jxX/iXPEkJG0n1Czl1ZDqaLuX+09uBvG
L7qVIOhfMgIgJrBkl0wsk+yV0oTm/wXGCP0uHZr4jYueDX3IoaWWsQM=
-----END CERTIFICATE-----
",
        "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg43XOQRWmo1BzdtRV
HDW5eXVUr0rMfT39y1rl6Rk4I5ChRANCAARZji+KehW7b3IOzz7FQksLIqUad6Ah
b7ZkeaDNSXlHrDzOqUVjbNZd2Z/amKvTZdOAVAWxVpSBb9JuXG4tz0o6
-----END PRIVATE KEY-----
",
    ];

    /// Regression: it was called an invalid certificate of the peer, with the reason
    /// `Other(OtherError(UnsupportedCertVersion))`.
    #[test]
    fn a_certificate_of_version_1_is_called_that() {
        let dir = tempfile::tempdir().unwrap();
        let [cert_file, key_file] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
        std::fs::write(&cert_file, OF_VERSION_1[0]).unwrap();
        std::fs::write(&key_file, OF_VERSION_1[1]).unwrap();
        let clients = ClientCertificates::No;
        let files = TlsConfig { port: 0, cert_file, key_file, ca_cert_file: None, clients, check_every: TlsConfig::CHECK_EVERY };
        let refused = Tls::load(files).map(drop).unwrap_err();
        assert!(refused.contains("version 1") && !refused.contains("peer"), "{refused}");
    }
}
