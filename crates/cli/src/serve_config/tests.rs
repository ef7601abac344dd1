//! Tests of the settings of `hither serve`.

use super::*;
use std::os::unix::ffi::OsStrExt;

/// Regression: such a message named no line, and for a password of digits it showed the password.
#[test]
fn the_line_at_fault_is_named_and_no_password() {
    let wrong = |text: &str| wrong_line(text, &toml::from_str::<ServeArgs>(text).unwrap_err());
    assert_eq!(wrong("port = 1\n\ntimeout = \"x\"\n"), "3: invalid type: string \"x\", expected u64");
    assert!(wrong("port = 1\nprot = 2").starts_with("2: unknown field `prot`"));
    assert!(wrong("port = 1\nport = 2").starts_with("2: "));
    for value in ["123456", "letmein", "\"letmein", "[\"letmein\"]", "{ letmein = 1 }", "true", "\"a\" letmein", "\"letmein\\q\""] {
        let text = format!("port = 1\nrequirepass = {value}\ntimeout = 3");
        assert_eq!(wrong(&text), "2: requirepass takes one text in quotes", "{value}");
    }
}

/// Regression: a variable that is not UTF-8 counted as absent, so the server had no password.
#[test]
fn a_variable_that_is_no_text_is_refused() {
    let bad = OsStr::from_bytes(b"a\xff");
    assert!(is_unreadable(OsStr::new("HITHER_REQUIREPASS"), bad) && is_unreadable(OsStr::new("HITHER_ACLFILE"), bad));
    assert!(!is_unreadable(OsStr::new("HITHER_REQUIREPASS"), OsStr::new("é")));
    assert!(!is_unreadable(OsStr::new("HITHER_DATA"), bad) && !is_unreadable(OsStr::new("OTHER"), bad));
}

/// Regression: an empty password in the environment took precedence over that of the file, so there was none.
#[test]
fn an_empty_password_in_the_environment_is_refused() {
    let with = |text: &str| ServeArgs::from_environment(|name| (name == "HITHER_REQUIREPASS").then(|| text.to_owned()));
    assert!(matches!(with(""), Err(Failure::Usage(why)) if why.contains("HITHER_REQUIREPASS is empty")));
    assert_eq!(with("x").unwrap().requirepass.as_deref(), Some("x"));
    // In a file an empty password means that there is none, as in Redis.
    assert_eq!(toml::from_str::<ServeArgs>("requirepass = \"\"").unwrap().requirepass.as_deref(), Some(""));
}

/// Regression: the collision was found only after the store was recovered or created.
#[test]
fn addresses_that_cannot_be_had_together_are_refused() {
    let store = || <crate::args::Cli as clap::Parser>::parse_from(["hither", "serve", "--data", "d"]).store;
    let listening =
        |text: &str| ServeArgs { listen: Some(text.split(' ').map(|ip| ip.parse().unwrap()).collect()), ..ServeArgs::default() };
    assert!(listening("0.0.0.0 ::").resolve(&mut store()).is_ok());
    for text in ["0.0.0.0 127.0.0.1", "::1 ::1"] {
        assert!(matches!(listening(text).resolve(&mut store()), Err(Failure::Usage(_))), "{text}");
    }
    let file = Some(PathBuf::from("f"));
    let ports = |tls_port| ServeArgs {
        port: Some(7),
        tls_port: Some(tls_port),
        tls_cert_file: file.clone(),
        tls_key_file: file.clone(),
        ..ServeArgs::default()
    };
    assert!(matches!(ports(7).resolve(&mut store()), Err(Failure::Usage(_))));
    assert!(ports(8).resolve(&mut store()).is_ok());
    assert!(ServeArgs { tls_only: Some(true), ..ports(7) }.resolve(&mut store()).is_ok());
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let flags = ServeArgs { port: Some(1), ..ServeArgs::default() };
    let environment = ServeArgs::from_environment(|name| match name {
        "HITHER_PORT" => Some("2".into()),
        "HITHER_THREADS" => Some("2".into()),
        "HITHER_LISTEN" => Some("127.0.0.1, ::1".into()),
        "HITHER_PROTECTED_MODE" => Some("No".into()),
        "HITHER_UTILIZATION" => Some("70".into()),
        _ => None,
    })
    .unwrap();
    let file: ServeArgs = toml::from_str(
        "utilization = 60\nport = 3\nthreads = 3\nwakeup-preemption = true\ntimeout = 3\nlisten = [\"0.0.0.0\"]\nrequirepass = \"x\"",
    )
    .unwrap();
    let all = flags.or(environment).or(file);
    assert_eq!((all.port, all.threads, all.timeout, all.utilization), (Some(1), Some(2), Some(3), Some(70)));
    assert_eq!(all.listen.unwrap().len(), 2);
    assert_eq!((all.protected_mode, all.wakeup_preemption, all.requirepass.as_deref()), (Some(false), Some(true), Some("x")));
}

#[test]
fn more_threads_or_databases_than_make_sense_are_refused() {
    let store = || <crate::args::Cli as clap::Parser>::parse_from(["hither", "serve", "--data", "d"]).store;
    let metrics = |address: &str| Some(address.parse().unwrap());
    let at = |listen: &[&str], address: &str| ServeArgs {
        port: Some(7000),
        listen: Some(listen.iter().map(|ip| ip.parse().unwrap()).collect()),
        metrics_address: metrics(address),
        ..ServeArgs::default()
    };
    for args in [
        ServeArgs { threads: Some(MOST_THREADS), databases: Some(256), ..ServeArgs::default() },
        ServeArgs { port: Some(7000), metrics_address: metrics("127.0.0.1:7001"), ..ServeArgs::default() },
        ServeArgs { port: Some(7000), metrics_address: metrics("127.0.0.9:7000"), ..ServeArgs::default() },
        at(&["0.0.0.0"], "[::1]:7000"),
        at(&["::1"], "0.0.0.0:7000"),
        at(&["::", "10.0.0.1"], "127.0.0.1:7000"),
        ServeArgs { port: Some(0), metrics_address: metrics("127.0.0.1:0"), ..ServeArgs::default() },
    ] {
        assert!(args.resolve(&mut store()).is_ok());
    }
    for args in [
        ServeArgs { threads: Some(MOST_THREADS + 1), ..ServeArgs::default() },
        ServeArgs { threads: Some(99_999_999), ..ServeArgs::default() },
        ServeArgs { databases: Some(257), ..ServeArgs::default() },
        ServeArgs { databases: Some(0), ..ServeArgs::default() },
        ServeArgs { max_clients: Some(0), ..ServeArgs::default() },
        ServeArgs { max_request: Some("0".into()), ..ServeArgs::default() },
        ServeArgs { listen: Some(Vec::new()), ..ServeArgs::default() },
        ServeArgs { tls_only: Some(true), ..ServeArgs::default() },
        // Regression: the server ran without TLS.
        ServeArgs { tls_cert_file: Some("cert.pem".into()), tls_key_file: Some("key.pem".into()), ..ServeArgs::default() },
        ServeArgs { tls_auth_clients: Some("yes".into()), ..ServeArgs::default() },
        ServeArgs { enable_debug_command: Some("maybe".into()), ..ServeArgs::default() },
        // Regression: found only once the store was open, or made.
        ServeArgs { port: Some(7000), metrics_address: metrics("127.0.0.1:7000"), ..ServeArgs::default() },
        ServeArgs { port: Some(7000), metrics_address: metrics("0.0.0.0:7000"), ..ServeArgs::default() },
        at(&["::"], "127.0.0.1:7000"),
        at(&["10.0.0.1"], "[::]:7000"),
        at(&["0.0.0.0"], "127.0.0.1:7000"),
        at(&["0.0.0.0"], "[::ffff:127.0.0.1]:7000"),
    ] {
        assert!(matches!(args.resolve(&mut store()), Err(Failure::Usage(_))));
    }
    let local: ServeArgs = toml::from_str("enable-debug-command = \"local\"").unwrap();
    assert_eq!(local.resolve(&mut store()).unwrap().enable_debug_command, DebugCommand::Local);
    // Regression: the error did not name the size.
    let wrong = ServeArgs { max_output: Some("-5".into()), ..ServeArgs::default() }.resolve(&mut store());
    assert!(matches!(&wrong, Err(Failure::Usage(why)) if why.starts_with("max-output: ")), "{wrong:?}");
}

#[test]
fn what_cannot_be_read_is_refused() {
    assert!(ServeArgs::from_environment(|name| (name == "HITHER_PORT").then(|| "many".into())).is_err());
    assert!(ServeArgs::from_environment(|name| (name == "HITHER_LISTEN").then(|| "here".into())).is_err());
    assert!(ServeArgs::from_environment(|name| (name == "HITHER_UTILIZATION").then(|| "most".into())).is_err());
    assert!(toml::from_str::<ServeArgs>("prot = 1").is_err());
    assert!(toml::from_str::<ServeArgs>("port = 70000").is_err());
    for text in ["tls-port = 1", "tls-only = true", "tls-port = 1\ntls-cert-file = \"c\"\ntls-key-file = \"k\"\ntls-auth-clients = \"x\""] {
        assert!(toml::from_str::<ServeArgs>(text).unwrap().tls().is_err(), "{text}");
    }
    let tls: ServeArgs = toml::from_str("tls-port = 1\ntls-cert-file = \"c\"\ntls-key-file = \"k\"").unwrap();
    assert_eq!(tls.tls().unwrap().unwrap().clients, ClientCertificates::Yes);
    for text in ["log-level = \"loud\"", "log-format = \"xml\""] {
        assert!(toml::from_str::<ServeArgs>(text).unwrap().set_log().is_err(), "{text}");
    }
}

/// Regression: the manual installed a file that did not exist.
#[test]
fn the_file_that_is_shipped_can_be_read_with_its_examples() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/server.toml"));
    let shipped = ServeArgs::from_file(path).unwrap();
    assert_eq!(shipped, ServeArgs { data: Some(vec!["/var/lib/hither/store".into()]), ..ServeArgs::default() });
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line));
    let examples: ServeArgs = toml::from_str(&lines.collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!((examples.create, examples.port, examples.utilization), (Some(false), Some(6379), Some(80)));
}

/// Every setting that has a flag, each with a value of its own, except for those that are yes or no.
const FLAGS: [(&str, &str); 19] = [
    ("listen", "127.0.0.7"),
    ("port", "1001"),
    ("threads", "102"),
    ("databases", "103"),
    ("max-clients", "1004"),
    ("timeout", "1005"),
    ("max-output", "1006"),
    ("max-request", "1007"),
    ("aclfile", "users.acl"),
    ("backup-dir", "backups"),
    ("tls-port", "1008"),
    ("tls-cert-file", "cert.pem"),
    ("tls-key-file", "key.pem"),
    ("tls-ca-cert-file", "ca.pem"),
    ("tls-auth-clients", "optional"),
    ("metrics-address", "127.0.0.8:1009"),
    ("enable-debug-command", "local"),
    ("latency-monitor-threshold", "1010"),
    ("log-level", "warn"),
];

/// These flags, and the settings that are yes or no: all are alike except the one at `odd`.
fn flags(odd: usize, yes: bool) -> Vec<(&'static str, String)> {
    let switches = ["wakeup-preemption", "protected-mode", "tls-only", "create"].into_iter().enumerate();
    let switches = switches.map(|(at, name)| (name, ((at == odd) == yes).to_string()));
    FLAGS.iter().map(|(name, value)| (*name, (*value).to_owned())).chain(switches).collect()
}

fn from_flags(flags: &[(&str, String)]) -> ServeArgs {
    let words = flags.iter().map(|(name, value)| format!("--{name}={value}"));
    let words = ["hither", "serve", "--log-format=text"].into_iter().map(str::to_owned).chain(words);
    match <crate::args::Cli as clap::Parser>::parse_from(words).command {
        crate::args::Command::Serve(args) => *args,
        other => panic!("{other:?}"),
    }
}

/// The same settings as variables, and those that have no flag.
fn from_variables(flags: &[(&str, String)]) -> ServeArgs {
    let own = [("log-format", "text"), ("requirepass", "secret"), ("utilization", "11")].map(|(name, value)| (name, value.to_owned()));
    let variable = |(name, value): &(&str, String)| (format!("HITHER_{}", name.replace('-', "_").to_uppercase()), value.clone());
    let all: std::collections::HashMap<_, _> = flags.iter().chain(&own).map(variable).collect();
    ServeArgs::from_environment(|name| all.get(name).cloned()).unwrap()
}

/// The same settings as lines of a file, and those that have no variable.
fn from_lines(flags: &[(&str, String)]) -> ServeArgs {
    let mut text = "log-format = \"text\"\nrequirepass = \"secret\"\nutilization = 11\ndata = [\"here\"]\n".to_owned();
    text += "capacity = \"12M\"\nmax-capacity = \"13M\"\n";
    for (name, value) in flags {
        let is_text =
            value.parse::<u64>().is_err() && value.parse::<bool>().is_err() || name.starts_with("max-o") || name.starts_with("max-r");
        text += &match *name {
            "listen" => format!("{name} = [\"{value}\"]\n"),
            _ if is_text => format!("{name} = \"{value}\"\n"),
            _ => format!("{name} = {value}\n"),
        };
    }
    toml::from_str(&text).unwrap()
}

/// The configuration that the settings of all layers result in.
fn expected(odd: usize, yes: bool) -> Config {
    let switch = |at: usize| (at == odd) == yes;
    Config {
        listen: vec!["127.0.0.7".parse().unwrap()],
        port: 1001,
        threads: 102,
        wakeup_preemption: switch(0),
        databases: 103,
        protected_mode: switch(1),
        max_clients: 1004,
        timeout_s: 1005,
        max_output_bytes: 1006,
        max_request_bytes: 1007,
        aclfile: Some("users.acl".into()),
        backup_dir: Some("backups".into()),
        tls: Some(TlsConfig {
            port: 1008,
            cert_file: "cert.pem".into(),
            key_file: "key.pem".into(),
            ca_cert_file: Some("ca.pem".into()),
            check_every: TlsConfig::CHECK_EVERY,
            clients: ClientCertificates::Optional,
        }),
        tls_only: switch(2),
        metrics_address: Some("127.0.0.8:1009".parse().unwrap()),
        enable_debug_command: DebugCommand::Local,
        latency_threshold_ms: 1010,
        requirepass: Some("secret".into()),
        ..Config::default()
    }
}

#[test]
fn every_setting_of_every_layer_arrives() {
    for (odd, yes) in [(0, true), (1, true), (2, true), (3, true), (1, false)] {
        let flags = flags(odd, yes);
        let (given, variables, lines) = (from_flags(&flags), from_variables(&flags), from_lines(&flags));
        // Each layer has what the one before has, and what only it can have.
        let own = |requirepass, utilization| ServeArgs { requirepass, utilization, ..given.clone() };
        assert_eq!(variables, own(Some("secret".into()), Some(11)));
        let (data, capacity, max_capacity) = (Some(vec!["here".into()]), Some("12M".into()), Some("13M".into()));
        assert_eq!(lines, ServeArgs { data, capacity, max_capacity, ..variables.clone() });
        // Merging with an empty layer loses nothing, on either side.
        let nothing = ServeArgs::default;
        assert_eq!([nothing().or(lines.clone()), lines.clone().or(nothing())], [lines.clone(), lines.clone()]);
        let mut store = <crate::args::Cli as clap::Parser>::parse_from(["hither", "serve"]).store;
        let resolved = lines.resolve(&mut store).unwrap();
        assert_eq!(format!("{resolved:#?}"), format!("{:#?}", expected(odd, yes)));
        assert_eq!(events::level(), Level::Warn);
        assert_eq!((store.data, store.utilization, store.create), (vec!["here".into()], Some(11), Some((odd == 3) == yes)));
        assert_eq!((store.capacity, store.max_capacity), (units::store_size("12M").ok(), units::store_size("13M").ok()));
    }
}
