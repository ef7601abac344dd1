//! A whole server in this process: TLS, metrics and health, protected mode, and the limits of slow and hostile clients.

use crate::common::{read_some, skipped};
use hither_resp::{Limits, Value, decode};
use hither_server::config::{ClientCertificates, DebugCommand, TlsConfig};
use hither_server::{Config, Server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn start(config: Config) -> Server {
    crate::common::start_with(Config { threads: 2, ..config })
}

/// Makes an authority with certificates for "server" and "client" in `dir`.
fn certify(dir: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

fn tls(dir: &Path, clients: ClientCertificates) -> Option<TlsConfig> {
    let (cert_file, key_file) = (dir.join("server.pem"), dir.join("server.key"));
    Some(TlsConfig { port: 0, cert_file, key_file, ca_cert_file: Some(dir.join("ca.pem")), clients, check_every: TlsConfig::CHECK_EVERY })
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn connect(address: SocketAddr, dir: &Path, with_certificate: bool) -> Stream {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca.pem")).unwrap()).unwrap();
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = if with_certificate {
        let certificate = CertificateDer::from_pem_file(dir.join("client.pem")).unwrap();
        builder.with_client_auth_cert(vec![certificate], PrivateKeyDer::from_pem_file(dir.join("client.key")).unwrap()).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let session = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    StreamOwned::new(session, stream)
}

fn receive(stream: &mut impl Read) -> std::io::Result<Value> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        if let Some((value, _)) = decode(&bytes, &Limits::default()).unwrap() {
            return Ok(value);
        }
        match read_some(stream, &mut chunk)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

fn say(stream: &mut (impl Read + Write), line: &str) -> std::io::Result<Value> {
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    receive(stream)
}

fn simple(text: &str) -> Value {
    Value::Simple(text.as_bytes().to_vec())
}

#[test]
fn encrypted_clients_are_served_like_others() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    let server = start(Config { tls: tls(dir.path(), ClientCertificates::No), ..Config::default() });
    let address = server.tls_address().unwrap();
    let mut client = connect(address, dir.path(), false);
    assert_eq!(say(&mut client, "PING").unwrap(), simple("PONG"));
    // Larger than all buffers, in both directions.
    let large = vec![b'x'; 5 << 20];
    client.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n", large.len()).as_bytes()).unwrap();
    client.write_all(&large).unwrap();
    client.write_all(b"\r\n").unwrap();
    assert_eq!(receive(&mut client).unwrap(), simple("OK"));
    assert!(say(&mut client, "GET a").unwrap() == Value::Bulk(large));
    for number in 0..100 {
        assert_eq!(say(&mut client, "INCR n").unwrap(), Value::Integer(number + 1));
    }
    // Both ports serve one store.
    let mut plain = TcpStream::connect(server.address()).unwrap();
    assert_eq!(say(&mut plain, "GET n").unwrap(), Value::Bulk(b"100".to_vec()));
    assert_eq!(say(&mut client, "QUIT").unwrap(), simple("OK"));
    assert_eq!(client.read(&mut [0; 10]).unwrap(), 0, "a goodbye, not a cut");
    // Not TLS at all.
    let mut wrong = TcpStream::connect(address).unwrap();
    wrong.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    wrong.write_all(b"PING\r\nPING\r\n").unwrap();
    let mut rest = Vec::new();
    // An alert, or a cut.
    let _ = wrong.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"+PONG"));
    server.stop();
}

#[test]
fn certificates_of_clients_are_asked_for_and_new_ones_are_read() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certify(dir.path());
    certify(other.path());
    let server = start(Config { tls: tls(dir.path(), ClientCertificates::Yes), tls_only: true, ..Config::default() });
    let address = server.tls_address().unwrap();
    assert_eq!(server.address(), address, "there is no other port");
    assert_eq!(say(&mut connect(address, dir.path(), true), "PING").unwrap(), simple("PONG"));
    assert!(say(&mut connect(address, dir.path(), false), "PING").is_err(), "no certificate");
    assert!(say(&mut connect(address, other.path(), true), "PING").is_err(), "another authority");
    for name in ["ca.pem", "server.pem", "server.key"] {
        std::fs::copy(other.path().join(name), dir.path().join(name)).unwrap();
    }
    server.shared().reload.store(true, Ordering::Release);
    let end = Instant::now() + Duration::from_secs(20);
    while say(&mut connect(address, other.path(), true), "PING").is_err() {
        assert!(Instant::now() < end, "the new certificates are not used");
    }
    std::fs::write(dir.path().join("server.pem"), "nothing").unwrap();
    let tls = server.shared().tls.as_ref().unwrap();
    assert!(tls.reload().unwrap_err().contains("server.pem"));
    assert_eq!(say(&mut connect(address, other.path(), true), "PING").unwrap(), simple("PONG"), "the old ones stay");
    server.stop();
}

#[test]
fn certificates_that_change_are_read_by_themselves() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certify(dir.path());
    certify(other.path());
    let soon = TlsConfig { check_every: Duration::from_millis(50), ..tls(dir.path(), ClientCertificates::No).unwrap() };
    let server = start(Config { tls: Some(soon), ..Config::default() });
    let address = server.tls_address().unwrap();
    assert_eq!(say(&mut connect(address, dir.path(), false), "PING").unwrap(), simple("PONG"));
    // A certificate without its key: the old ones stay in force until the key follows.
    std::fs::copy(other.path().join("server.pem"), dir.path().join("server.pem")).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(say(&mut connect(address, dir.path(), false), "PING").unwrap(), simple("PONG"));
    // The key comes last and at once: the server may look at any time, and what it reads then must be complete.
    for name in ["ca.pem", "server.key"] {
        std::fs::copy(other.path().join(name), dir.path().join("new")).unwrap();
        std::fs::rename(dir.path().join("new"), dir.path().join(name)).unwrap();
    }
    let end = Instant::now() + Duration::from_secs(20);
    while say(&mut connect(address, other.path(), false), "PING").is_err() {
        assert!(Instant::now() < end, "the new certificates are not used");
        std::thread::sleep(Duration::from_millis(20));
    }
    let tls = server.shared().tls.as_ref().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!tls.is_changed(), "what was read is not read again");
    server.stop();
}

/// Regression: a page in a browser can have a form sent to this port, and its lines were run.
#[test]
fn requests_of_browsers_run_no_commands() {
    let server = start(Config::default());
    for request in [
        "POST / HTTP/1.1\r\nHost: localhost:6379\r\nContent-Length: 20\r\n\r\nSET page was-here\r\n",
        "GET / HTTP/1.1\r\nHost: localhost:6379\r\n\r\nSET page was-here\r\n",
        "post x\r\nSET page was-here\r\n",
    ] {
        let mut browser = TcpStream::connect(server.address()).unwrap();
        browser.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        browser.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        browser.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("-ERR this is no HTTP server\r\n"), "{answer}");
    }
    let mut client = TcpStream::connect(server.address()).unwrap();
    assert_eq!(say(&mut client, "GET page").unwrap(), Value::Null);
    server.stop();
}

/// Regression: `normal 0 0 0`, which is how Redis says "no limit", had every client closed at its next reply.
#[test]
fn an_output_limit_of_zero_is_none() {
    let server = start(Config { max_output_bytes: 0, ..Config::default() });
    let mut client = TcpStream::connect(server.address()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(say(&mut client, "PING").unwrap(), simple("PONG"));
    for limit in ["normal 1000000 0 0", "normal 0 0 0", "0"] {
        let words = ["CONFIG", "SET", "client-output-buffer-limit", limit];
        let request: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        client.write_all(format!("*{}\r\n{request}", words.len()).as_bytes()).unwrap();
        assert_eq!(receive(&mut client).unwrap(), simple("OK"), "{limit}");
        assert_eq!(say(&mut client, "PING").unwrap(), simple("PONG"), "{limit}");
    }
    server.stop();
}

/// The server does not read a socket again that gave less than the buffer holds: later bytes, and the end, must be
/// events of their own. Tests sizes around that of one read, with the end at the same moment as the request or a little
/// later.
#[test]
fn clients_that_say_all_at_once_and_hang_up_are_answered() {
    let server = start(Config::default());
    for (length, pause_us) in
        [1, 65_000, 65_500, 65_535, 65_536, 65_537, 131_072, 200_000].into_iter().flat_map(|length| [(length, 0), (length, 300)])
    {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // An echo of as many bytes as make the whole request `length` bytes long, or nearly.
            let text = "x".repeat(length.max(40) - 30);
            stream.write_all(format!("*2\r\n$4\r\nECHO\r\n${}\r\n{text}\r\n", text.len()).as_bytes()).unwrap();
            std::thread::sleep(Duration::from_micros(pause_us));
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(receive(&mut stream).unwrap(), Value::Bulk(text.into()), "{length} bytes");
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "the server hangs up, too");
        }
    }
}

/// Regression: if a client hung up while its command waited for a change of databases, the commands behind it were
/// dropped without a reply. So were those of a client that only sent PING while another client had the database
/// flushed.
#[test]
fn who_hangs_up_is_answered_when_databases_have_changed() {
    let server = start(Config::default());
    for (number, line) in ["SELECT 1", "FLUSHDB", "FLUSHALL", "SWAPDB 0 2", "SAVE"].into_iter().cycle().take(40).enumerate() {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("{line}\r\nSET k {number}\r\nGET k\r\n").as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        let length = number.to_string().len();
        assert_eq!(replies, format!("+OK\r\n+OK\r\n${length}\r\n{number}\r\n"), "{line}");
    }
    server.stop();
}

#[test]
fn a_pause_holds_up_commands_and_ends() {
    let server = start(Config::default());
    let connect = || {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    let (mut operator, mut reader, mut writer) = (connect(), connect(), connect());
    say(&mut writer, "MULTI").unwrap();
    say(&mut writer, "INCR n").unwrap();
    assert_eq!(say(&mut operator, "CLIENT PAUSE 60000 WRITE").unwrap(), simple("OK"));
    // Two in one packet: neither is lost, and their order stays.
    writer.write_all(b"EXEC\r\nINCR n\r\n").unwrap();
    assert_eq!(say(&mut reader, "GET n").unwrap(), Value::Null, "reads go on");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(say(&mut reader, "GET n").unwrap(), Value::Null, "the write waits");
    assert_eq!(say(&mut operator, "CLIENT UNPAUSE").unwrap(), simple("OK"));
    let mut replies = [0; 12];
    writer.read_exact(&mut replies).unwrap();
    assert_eq!(&replies, b"*1\r\n:1\r\n:2\r\n");
    // All commands, until the pause is over by itself.
    let began = Instant::now();
    assert_eq!(say(&mut operator, "CLIENT PAUSE 400").unwrap(), simple("OK"));
    assert_eq!(say(&mut reader, "GET n").unwrap(), Value::Bulk(b"2".to_vec()));
    assert!(began.elapsed() >= Duration::from_millis(350), "{:?}", began.elapsed());
    // A client that can end the pause must be able to.
    say(&mut operator, "CLIENT PAUSE 60000 ALL").unwrap();
    assert_eq!(say(&mut operator, "CLIENT UNPAUSE").unwrap(), simple("OK"));
    assert_eq!(say(&mut reader, "PING").unwrap(), simple("PONG"));
    server.stop();
}

#[test]
fn half_handshakes_end_and_hold_little() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    let server = start(Config { tls: tls(dir.path(), ClientCertificates::Optional), ..Config::default() });
    let address = server.tls_address().unwrap();
    let mut half: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (number, stream) in half.iter_mut().enumerate() {
        // The beginning of a record that never ends, or nothing at all.
        stream.write_all(&[22, 3, 1, 0x3f, 0xff, 1, 0][..number % 8]).unwrap();
    }
    assert_eq!(say(&mut connect(address, dir.path(), true), "PING").unwrap(), simple("PONG"), "others are served");
    let tls = server.shared().tls.as_ref().unwrap();
    // A thread other than the one that served may accept its share later.
    for expected in [50, 0] {
        let end = Instant::now() + Duration::from_secs(30);
        while tls.handshakes() != expected {
            assert!(Instant::now() < end, "{} are there, not {expected}", tls.handshakes());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(server.shared().clients.is_empty());
    server.stop();
}

fn get(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Parses the text format: families by name with their types, samples by name and labels. Fails where a reader would.
fn parse(text: &str) -> (HashMap<String, String>, HashMap<String, f64>) {
    let (mut families, mut samples, mut helped): (HashMap<String, String>, _, _) = (HashMap::new(), HashMap::new(), HashSet::new());
    let name_ok =
        |name: &str| name.starts_with("hither_") && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(helped.insert(rest.split_once(' ').unwrap().0.to_owned()), "twice: {line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind) && helped.contains(name) && name_ok(name), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(families.insert(name.to_owned(), kind.to_owned()).is_none(), "twice: {line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let name = series.split('{').next().unwrap();
            if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
                let inside = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix('}')).unwrap();
                assert!(inside.split("\",").all(|pair| pair.contains("=\"")), "{line}");
            }
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).filter(|name| families.contains_key(*name));
            assert!(families.contains_key(family.unwrap_or(name)), "no family: {line}");
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(value.is_finite() && samples.insert(series.to_owned(), value).is_none(), "{line}");
        }
    }
    assert_eq!(helped.len(), families.len());
    (families, samples)
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let server = start(Config { metrics_address: Some("127.0.0.1:0".parse().unwrap()), ..Config::default() });
    let mut client = TcpStream::connect(server.address()).unwrap();
    for _ in 0..10 {
        say(&mut client, "SET a 1").unwrap();
    }
    say(&mut client, "GET nothing").unwrap();
    say(&mut client, "AUTH nobody x").unwrap();
    let address = server.metrics_address().unwrap();
    let answer = get(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    let (families, samples) = parse(body);
    assert!(families.len() > 40);
    assert_eq!(samples["hither_commands_total{command=\"set\"}"], 10.0);
    assert_eq!(samples["hither_command_duration_seconds_count{command=\"set\"}"], 10.0);
    assert_eq!(samples["hither_command_duration_seconds_bucket{command=\"set\",le=\"+Inf\"}"], 10.0);
    assert!(samples["hither_command_duration_seconds_sum{command=\"set\"}"] > 0.0);
    assert_eq!(samples["hither_keys{database=\"0\"}"], 1.0);
    assert_eq!(samples["hither_refusals_total{reason=\"auth\"}"], 1.0);
    assert_eq!(samples["hither_connections{thread=\"0\"}"] + samples["hither_connections{thread=\"1\"}"], 1.0);
    for name in ["pool_max_bytes{node=\"0\"}", "pool_live_bytes{node=\"0\"}", "memory_bytes", "cache_capacity_bytes", "nodes"] {
        assert!(samples.contains_key(&format!("hither_{name}")), "{name}");
    }
    server.stop();
}

#[test]
fn health_and_readiness_and_clients_that_are_no_good() {
    let server = start(Config { metrics_address: Some("127.0.0.1:0".parse().unwrap()), ..Config::default() });
    let address = server.metrics_address().unwrap();
    let mut slow: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"GET /met").unwrap());
    assert!(get(address, "GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"), "slow ones hold up nobody");
    assert!(get(address, "GET /readyz HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nok\n"));
    assert!(get(address, "HEAD /readyz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    assert!(get(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(get(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    let mut long = TcpStream::connect(address).unwrap();
    long.write_all(format!("GET /{} HTTP/1.1\r\n", "x".repeat(9000)).as_bytes()).unwrap();
    let mut start_of_answer = [0; 12];
    long.read_exact(&mut start_of_answer).unwrap();
    assert_eq!(&start_of_answer, b"HTTP/1.1 431");
    // Regression: the answer was lost if more came than the request.
    for (request, expected) in [
        (format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(300_000)), "HTTP/1.1 431"),
        (format!("POST / HTTP/1.1\r\n\r\n{}", "x".repeat(300_000)), "HTTP/1.1 405"),
        ("GET /healthz HTTP/1.1\r\n\r\n".repeat(2000), "HTTP/1.1 200"),
    ] {
        assert!(get(address, &request).starts_with(expected), "{expected}");
    }
    slow.iter_mut().for_each(|stream| {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let end = stream.read(&mut [0; 10]);
        let closed = end.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |count| *count == 0);
        assert!(closed, "it is closed without an answer: {end:?}");
    });
    server.shared().failed.store(true, Ordering::Relaxed);
    assert!(get(address, "GET /readyz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503"));
    assert!(get(address, "GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"), "to start it again would help nobody by itself");
    server.stop();
}

/// An address of this machine other than loopback, if there is one.
fn other_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the system only chooses the address.
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[test]
fn protected_mode_refuses_other_machines_without_credentials() {
    let Some(ip) = other_address() else {
        return skipped("without_other_address");
    };
    let server = start(Config { listen: vec!["0.0.0.0".parse().unwrap()], ..Config::default() });
    let from_outside = SocketAddr::new(ip, server.address().port());
    let refused = |outcome: std::io::Result<Value>| match outcome {
        Ok(Value::Error(text)) => text.starts_with(b"DENIED"),
        // The connection was closed before the command was read.
        Err(_) => true,
        Ok(_) => false,
    };
    let outside = || receive_after_ping(from_outside);
    assert!(refused(outside()));
    let mut local = TcpStream::connect(("127.0.0.1", server.address().port())).unwrap();
    assert_eq!(say(&mut local, "PING").unwrap(), simple("PONG"));
    say(&mut local, "ACL SETUSER default >secret").unwrap();
    assert_eq!(
        outside().unwrap(),
        Value::Error(b"NOAUTH Authentication required.".to_vec()),
        "with a password they are let in, and asked for it"
    );
    say(&mut local, "ACL SETUSER default nopass").unwrap();
    assert!(refused(outside()));
    say(&mut local, "ACL SETUSER default off").unwrap();
    assert!(matches!(outside(), Ok(Value::Error(text)) if text.starts_with(b"NOAUTH")));
    say(&mut local, "ACL SETUSER default on nopass").unwrap();
    say(&mut local, "CONFIG SET protected-mode no").unwrap();
    assert_eq!(outside().unwrap(), simple("PONG"));
    server.stop();
}

fn receive_after_ping(address: SocketAddr) -> std::io::Result<Value> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    say(&mut stream, "PING")
}

#[test]
fn latency_is_kept_and_told() {
    let server = start(Config { enable_debug_command: DebugCommand::Local, ..Config::default() });
    let mut client = TcpStream::connect(server.address()).unwrap();
    say(&mut client, "DEBUG SLEEP 0.01").unwrap();
    assert_eq!(say(&mut client, "LATENCY LATEST").unwrap(), Value::Array(Vec::new()), "it is off");
    // Far above what a busy machine makes of other commands.
    say(&mut client, "CONFIG SET latency-monitor-threshold 1000").unwrap();
    say(&mut client, "DEBUG SLEEP 1.2").unwrap();
    let Value::Array(events) = say(&mut client, "LATENCY LATEST").unwrap() else { panic!() };
    let Value::Array(event) = &events[0] else { panic!() };
    assert_eq!(event[0], Value::Bulk(b"command".to_vec()));
    assert!(matches!(event[2], Value::Integer(1_200..)) && matches!(event[3], Value::Integer(1_200..)), "{event:?}");
    let Value::Array(history) = say(&mut client, "LATENCY HISTORY command").unwrap() else { panic!() };
    assert_eq!(history.len(), 1);
    let Value::Array(histogram) = say(&mut client, "LATENCY HISTOGRAM debug").unwrap() else { panic!() };
    assert_eq!(histogram[0], Value::Bulk(b"debug|sleep".to_vec()));
    let Value::Array(of_sleep) = &histogram[1] else { panic!() };
    assert_eq!(of_sleep[1], Value::Integer(2));
    let Value::Bulk(words) = say(&mut client, "LATENCY DOCTOR").unwrap() else { panic!() };
    assert!(words.starts_with(b"command: 1 times"), "{}", String::from_utf8_lossy(&words));
    assert_eq!(say(&mut client, "LATENCY RESET command").unwrap(), Value::Integer(1));
    assert_eq!(say(&mut client, "LATENCY HISTORY command").unwrap(), Value::Array(Vec::new()));
    // Regression: a round was reported as up to 200 ms shorter than it was.
    say(&mut client, "CONFIG SET latency-monitor-threshold 100").unwrap();
    say(&mut client, "LATENCY RESET").unwrap();
    say(&mut client, "DEBUG SLEEP 0.12").unwrap();
    let Value::Array(rounds) = say(&mut client, "LATENCY HISTORY loop").unwrap() else { panic!() };
    assert!(!rounds.is_empty());
    server.stop();
}
