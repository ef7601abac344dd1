//! Users, their rules and their file.

use super::*;
use proptest::prelude::*;

fn acl_in(dir: &Path) -> Acl {
    Acl::new(None, Some(dir.join("users.acl")))
}

fn set(acl: &Acl, name: &str, rules: &str) -> Result<(), String> {
    acl.set_user(name.as_bytes(), &rules.split(' ').map(|rule| rule.as_bytes().to_vec()).collect::<Vec<_>>())
}

fn lines(acl: &Acl) -> Vec<String> {
    acl.list().iter().map(|user| format!("{} {}", user.name, String::from_utf8_lossy(&user.describe()))).collect()
}

#[test]
fn rules_are_described_as_they_can_be_given() {
    let acl = Acl::new(None, None);
    let cases = [
        ("on nopass ~* &* +@all", "on nopass ~* &* +@all"),
        ("off", "off resetchannels -@all"),
        ("on ~a %R~b %W~c %RW~d &ch +@read -get +config|get", "on ~a %R~b %W~c ~d resetchannels &ch -@all +@read -get +config|get"),
        ("%R~a %W~a", "off ~a resetchannels -@all"),
        ("+config|get +config|set -config", "off resetchannels -@all -config"),
        ("+get -get +get", "off resetchannels -@all +get"),
        ("+@all -@dangerous allcommands", "off resetchannels +@all"),
        ("~a (~b +get) ( %R~c", "error"),
        ("%R~* ~a %W~*", "off ~* resetchannels -@all"),
        ("~a) (~b) +get)", "error"),
        ("~a) &) %R~) (~b +get)", "off ~a) %R~) resetchannels &) -@all (~b resetchannels -@all +get)"),
        ("~a (~b +get) (%R~c -@all +set )", "off ~a resetchannels -@all (~b resetchannels -@all +get) (%R~c resetchannels -@all +set)"),
    ];
    for (number, (rules, expected)) in cases.into_iter().enumerate() {
        let name = format!("u{number:02}");
        match set(&acl, &name, rules) {
            Ok(()) => assert_eq!(lines(&acl).last().unwrap(), &format!("{name} {expected}")),
            Err(_) => assert_eq!(expected, "error", "{rules}"),
        }
        if expected != "error" {
            let again = format!("v{number}");
            set(&acl, &again, expected).unwrap();
            assert_eq!(acl.user(&again).unwrap().describe(), acl.user(&name).unwrap().describe(), "{rules}");
            assert!(acl.delete(&again));
        }
    }
}

#[test]
fn passwords_come_and_go() {
    let acl = Acl::new(Some("first"), None);
    assert!(!acl.is_open());
    assert!(acl.authenticate(b"default", b"first").is_some());
    assert!(acl.authenticate(b"default", b"second").is_none() && acl.authenticate(b"nobody", b"first").is_none());
    let hash = Hash::of(b"third").to_hex();
    set(&acl, "default", &format!(">second #{hash}")).unwrap();
    assert!([&b"first"[..], b"second", b"third"].iter().all(|password| acl.authenticate(b"default", password).is_some()));
    set(&acl, "default", &format!("<first !{hash}")).unwrap();
    assert!(acl.authenticate(b"default", b"first").is_none() && acl.authenticate(b"default", b"third").is_none());
    assert!(set(&acl, "default", "<first").unwrap_err().ends_with("does not exist"));
    set(&acl, "default", "off").unwrap();
    assert!(acl.authenticate(b"default", b"second").is_none(), "it is off");
    acl.set_default_password(None);
    assert!(!acl.is_open(), "it is still off");
}

#[test]
fn the_file_is_loaded_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let acl = acl_in(dir.path());
    set(&acl, "ada", "on >pw ~a:* +@read (%W~b:* +set)").unwrap();
    acl.save().unwrap();
    let saved = std::fs::read_to_string(dir.path().join("users.acl")).unwrap();
    assert!(!saved.contains(">pw") && saved.contains("user ada on #"), "{saved}");
    let before = lines(&acl);
    let other = acl_in(dir.path());
    other.load().unwrap();
    assert_eq!(lines(&other), before);
    for (text, why) in [
        ("user x on +nonsense", "users.acl:1: '+nonsense': Unknown command"),
        ("# fine\n\nuser x on >secret >second\nuser x on", ":4: user 'x' is there twice"),
        ("usr x", ":1: a line begins"),
        ("user x (+get", "parenthesis"),
    ] {
        common_write(&dir.path().join("users.acl"), text);
        let error = other.load().unwrap_err();
        assert!(error.contains(why) && !error.contains("secret"), "{error}");
        assert_eq!(lines(&other), before);
    }
    common_write(&dir.path().join("users.acl"), "user bob on nopass +@all ~*\r\n");
    other.load().unwrap();
    assert_eq!(other.list().len(), 2, "bob and the default user");
    assert!(Acl::new(None, None).save().unwrap_err().contains("--aclfile"));
}

/// Regression: a file left by an interrupted save kept its access rights when it was written anew, and they became
/// those of the ACL file.
#[test]
fn only_the_owner_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let acl = acl_in(dir.path());
    let file = dir.path().join("users.acl");
    let beside = beside(&file);
    common_write(&beside, "of before");
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o644)).unwrap();
    acl.save().unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!beside.exists() && !std::fs::read_to_string(&file).unwrap().contains("before"));
    // Nor is anything written through a link that somebody has put there.
    let elsewhere = dir.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, &beside).unwrap();
    acl.save().unwrap();
    assert!(!elsewhere.exists());
}

/// Regression: the thread of a client that sent ACL SAVE waited for the disk, and with it all clients of the thread; so
/// did a client that changed a user meanwhile.
#[test]
fn nobody_else_waits_for_a_save() {
    let dir = tempfile::tempdir().unwrap();
    let config = crate::Config { aclfile: Some(dir.path().join("users.acl")), ..crate::Config::default() };
    let shared = crate::Shared::new(hither::Db::builder().in_memory().open().unwrap(), config, 1).unwrap();
    let client = shared.clients.add("test".into(), "test".into(), 0);
    let mut session = crate::Session::new(shared.clone(), client);
    let words = hither_resp::Args::new(b"ACLSAVE", &[0..3, 3..7]);
    let mut reply = Vec::new();
    // As if the disk were slow.
    let saving = shared.acl().saving.lock();
    session.execute(&shared, words, &mut reply);
    assert!(reply.is_empty() && session.is_waiting());
    set(shared.acl(), "ada", "on").unwrap();
    drop(saving);
    while session.is_waiting() {
        std::thread::yield_now();
        session.execute(&shared, words, &mut reply);
    }
    assert_eq!(reply, b"+OK\r\n");
    shared.saving.join();
}

fn a_rule() -> impl Strategy<Value = Vec<u8>> {
    let words =
        ["on", "off", "nopass", "resetpass", "allkeys", "resetkeys", "&*", "resetchannels", "+@all", "-@all", "clearselectors", "reset"];
    let commands = ["+get", "-get", "+@read", "-@WRITE", "+config|get", "-config", "+Config"];
    let pattern = (prop_oneof![Just("~"), Just("%R~"), Just("%W~"), Just("%RW~"), Just("&")], "[*a)(\\[\\]\\\\#~%&>é ]{0,3}");
    let one = prop_oneof![
        2 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        4 => proptest::sample::select(commands.to_vec()).prop_map(str::to_owned),
        6 => pattern.prop_map(|(kind, pattern)| format!("{kind}{pattern}")),
        1 => ">[a) ]{0,3}",
    ];
    let selector = proptest::collection::vec(one.clone(), 0..4).prop_map(|rules| format!("({})", rules.join(" ")));
    prop_oneof![4 => one, 1 => selector].prop_map(String::into_bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Regression: a pattern that ended with a parenthesis ended its selector early when the file was loaded. A user
    /// with many short rules was taken for too large. `%R~*` with `%W~*` was written as `~*`, behind which no pattern
    /// may come.
    #[test]
    fn what_is_saved_can_be_loaded(rules in proptest::collection::vec(a_rule(), 0..30), short in 0..3000usize) {
        let dir = tempfile::tempdir().unwrap();
        let acl = acl_in(dir.path());
        for rule in &rules {
            // A refused rule changes nothing.
            let _ = acl.set_user(b"ada", std::slice::from_ref(rule));
        }
        let short: Vec<_> = (0..short).map(|number| format!("&{number:x}").into_bytes()).collect();
        for short in short.chunks(1000) {
            let _ = acl.set_user(b"bob", short);
        }
        acl.save().unwrap();
        let other = acl_in(dir.path());
        prop_assert_eq!(other.load(), Ok(()));
        prop_assert_eq!(lines(&other), lines(&acl));
    }
}

fn common_write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[test]
fn users_and_rules_are_bounded() {
    let acl = Acl::new(None, None);
    let long = format!("~{}", "x".repeat(user::MAX_RULES));
    assert!(set(&acl, "long", &long).unwrap_err().contains("64 KiB"));
    let many: Vec<Vec<u8>> = (0..2000).map(|number| format!(">{number}").into_bytes()).collect();
    assert!(acl.set_user(b"many", &many).is_err());
    for number in 1..MAX_USERS {
        set(&acl, &format!("u{number}"), "on").unwrap();
    }
    assert!(set(&acl, "one-more", "on").is_err());
    set(&acl, "u1", "off").unwrap();
}

/// Regression: a name that was too long or not UTF-8 was refused because of spaces that it did not have, and the error
/// about a line of the file gave no reason.
#[test]
fn names_that_no_user_can_have_are_refused_for_the_right_reason() {
    let dir = tempfile::tempdir().unwrap();
    let acl = acl_in(dir.path());
    let refused = |name: &[u8], why: &str| {
        assert_eq!(acl.set_user(name, &[]), Err(why.to_owned()));
        std::fs::write(acl.file().unwrap(), [b"# users\nuser ", name, b" on"].concat()).unwrap();
        let error = acl.load().unwrap_err();
        assert!(error.ends_with(&format!("users.acl:2: {why}")), "{error}");
    };
    refused(&[b'n'; 257], "Usernames have at most 256 bytes");
    refused(b"\xff", "Usernames must be UTF-8");
    refused("a\u{a0}b".as_bytes(), "Usernames can't contain spaces or null characters");
    refused(b"a\0b", "Usernames can't contain spaces or null characters");
    assert_eq!(acl.set_user(b"", &[]), Err("Usernames can't be empty".to_owned()));
    acl.set_user(&[b'n'; 256], &[]).unwrap();
    acl.save().unwrap();
    acl.load().unwrap();
    assert!(acl.user(&"n".repeat(256)).is_some());
}
