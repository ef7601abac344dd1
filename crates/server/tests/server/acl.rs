//! Users and rights, through sessions.

use crate::common::{Client, THREADS, connect, receive, say, send, shared, show, start_with};
use hither::Db;
use hither_resp::Value;
use hither_server::commands::failure::Failure;
use hither_server::commands::transactions;
use hither_server::{Config, Shared};

#[test]
fn rights_to_commands_and_keys() {
    let shared = shared();
    let mut admin = Client::new(&shared);
    admin.script(
        "ACL WHOAMI => default
        ACL USERS => [default]
        ACL LIST => [user default on nopass ~* &* +@all]
        MSET a:1 1 r:1 2 w:1 3 x 4 => OK
        ACL SETUSER ada on >pw ~a:* %R~r:* %W~w:* +@string +exists +copy +@connection +hither.range +hither.prefix => OK
        ACL GETUSER nobody => nil
        ACL SETUSER ada +nonsense => !ERR Error in ACL SETUSER modifier '+nonsense': Unknown command or category name in ACL
        ACL DRYRUN ada GET a:1 => OK
        ACL DRYRUN ada GET x => This user has no permissions to access the 'x' key
        ACL DRYRUN ada HGET a:1 f => This user has no permissions to run the 'hget' command
        ACL DRYRUN nobody GET x => !ERR User 'nobody' not found
        ACL DRYRUN ada NOTHING => !ERR Command 'NOTHING' not found
        ACL DRYRUN ada GET => !ERR wrong number of arguments for 'get' command",
    );
    let mut client = Client::new(&shared);
    let key = "!NOPERM this user has no permissions to access one of the keys used as arguments";
    client.script(&format!(
        "AUTH ada wrong => !WRONGPASS invalid username-password pair or user is disabled.
        AUTH ada pw => OK
        GET a:1 => 1
        SET a:1 5 GET => 1
        GET r:1 => 2
        SET r:1 2 => {key}
        SET w:1 2 => OK
        SET w:1 2 GET => {key}
        GET w:1 => {key}
        INCR w:1 => {key}
        APPEND w:1 2 => 2
        EXISTS w:1 r:1 => 2
        EXISTS w:1 x => {key}
        MGET a:1 x => {key}
        MSET a:1 1 r:1 2 => {key}
        COPY r:1 w:2 => 1
        COPY r:1 r:2 => {key}
        HGET a:1 f => !NOPERM this user has no permissions to run the 'hget' command
        CLIENT ID => 2
        ACL WHOAMI => !NOPERM this user has no permissions to run the 'acl|whoami' command
        HITHER.RANGE - + VALUES => [a:1 5 r:1 2]
        HITHER.PREFIX w: => []
        HITHER.DURABILITY => default
        RESET => RESET
        ACL WHOAMI => default"
    ));
}

#[test]
fn a_user_changes_under_its_clients() {
    let shared = shared();
    let (mut admin, mut client) = (Client::new(&shared), Client::new(&shared));
    admin.run("ACL SETUSER bob on nopass +@all ~*");
    client.script("AUTH bob anything => OK\nSET k 1 => OK");
    admin.run("ACL SETUSER bob -set");
    assert!(client.run("SET k 2").starts_with("!NOPERM"));
    client.script("MULTI => OK\nGET k => QUEUED\nINCR k => QUEUED\nGET k => QUEUED");
    admin.run("ACL SETUSER bob -incr");
    let reply = client.run("EXEC");
    assert!(reply.starts_with("[1 !NOPERM ACLs rules changed between") && reply.ends_with("or subcommand 1]"), "{reply}");
    admin.run("ACL SETUSER bob off");
    assert_eq!(client.run("GET k"), "1", "who is logged in stays so");
    assert!(admin.run("CLIENT LIST").contains("user=bob"));
    assert_eq!(admin.run("ACL DELUSER bob nobody"), "1");
    admin.run("ACL SETUSER bob on nopass +@all ~*");
    assert!(client.run("GET k").starts_with("!NOAUTH"), "the new one of the name is another");
    assert!(client.session.closing);
    assert_eq!(admin.run("ACL DELUSER default"), "!ERR The 'default' user cannot be removed");
    assert_eq!(admin.run("CLIENT KILL USER nobody"), "!ERR No such user 'nobody'");
}

/// Regression: the earlier user came back without being looked up again, so rights taken away during a failed attempt
/// stayed.
#[test]
fn rights_taken_away_during_an_exec_that_fails_are_gone() {
    let shared = shared();
    let (mut admin, mut client) = (Client::new(&shared), Client::new(&shared));
    admin.run("ACL SETUSER bob on nopass +@all ~*");
    client.script("AUTH bob x => OK\nSET k 1 => OK\nMULTI => OK\nGET k => QUEUED");
    shared.acl().set_user(b"bob", &[b"-@all".to_vec()]).unwrap();
    // The head of the array fits; the text of the refusal does not.
    let session = &mut client.session;
    session.output_limit = 64;
    let outcome = transactions::exec(session, &shared, &mut Vec::new(), &mut 0);
    assert!(matches!(outcome.map_err(|failure| *failure), Err(Failure::ReplyTooLarge)));
    let reply = client.run("GET k");
    assert!(reply.starts_with("!NOPERM"), "{reply}");
    assert_eq!(shared.acl().log.newest(9).len(), 1, "what EXEC did not answer is not noted");
}

#[test]
fn authentication_within_a_transaction_is_checked_command_by_command() {
    let shared = shared();
    let (mut admin, mut client) = (Client::new(&shared), Client::new(&shared));
    admin.run("ACL SETUSER low on nopass +get ~a +multi +exec");
    client.script(
        "MULTI => OK
        AUTH low x => QUEUED
        SET a 1 => QUEUED
        EXEC => [OK !NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer allowed for the following reason: no permission to execute the command or subcommand]
        SET a 1 => !NOPERM this user has no permissions to run the 'set' command
        GET a => nil
        MULTI => OK
        GET b => !NOPERM this user has no permissions to access one of the keys used as arguments
        EXEC => !EXECABORT Transaction discarded because of previous errors.",
    );
}

#[test]
fn selectors_allow_what_one_of_them_allows() {
    let shared = shared();
    let mut admin = Client::new(&shared);
    assert_eq!(admin.run("ACL SETUSER eve on nopass +get ~r:* (+set ~w:*)"), "OK");
    let mut client = Client::new(&shared);
    client.script("AUTH eve x => OK\nGET r:1 => nil\nSET w:1 1 => OK");
    assert!(client.run("GET w:1").starts_with("!NOPERM") && client.run("SET r:1 1").starts_with("!NOPERM"));
    assert_eq!(admin.run("ACL SETUSER eve (+get"), "!ERR Unmatched parenthesis in acl selector starting at '(+get'.");
    assert!(admin.run("ACL GETUSER eve").ends_with("selectors [[commands -@all +set keys ~w:* channels '']]]"));
}

#[test]
fn the_default_user_may_need_a_password_or_be_off() {
    let shared = shared();
    let (mut admin, mut early) = (Client::new(&shared), Client::new(&shared));
    admin.run("ACL SETUSER default >secret resetpass >secret");
    assert_eq!(early.run("PING"), "PONG", "it was there before");
    let mut late = Client::new(&shared);
    late.script("PING => !NOAUTH Authentication required.\nAUTH secret => OK\nPING => PONG");
    admin.run("ACL SETUSER default off");
    let mut later = Client::new(&shared);
    assert!(later.run("AUTH secret").starts_with("!WRONGPASS") && later.run("PING").starts_with("!NOAUTH"));
    admin.run("ACL SETUSER default on nopass");
    assert_eq!(later.run("PING"), "PONG", "no password is needed any more");
    admin.run("CONFIG SET requirepass other");
    let mut last = Client::new(&shared);
    assert!(last.run("AUTH secret").starts_with("!WRONGPASS"));
    assert!(last.run("HELLO 3 AUTH default other").starts_with("{server"));
}

#[test]
fn refusals_are_kept_with_bounds_and_without_secrets() {
    let shared = shared();
    let (mut admin, mut client) = (Client::new(&shared), Client::new(&shared));
    admin.script("ACL SETUSER bob on >hidden-word +@all -keys ~a => OK\nCONFIG SET slowlog-log-slower-than 0 => OK");
    client.script("AUTH bob hidden-wort => !WRONGPASS invalid username-password pair or user is disabled.\nAUTH bob hidden-word => OK");
    for _ in 0..3 {
        client.run("GET b");
        client.run("KEYS *");
    }
    admin.script("CONFIG SET requirepass hidden-word => OK\nACL SETUSER carl >hidden-word => OK");
    let log = admin.run("ACL LOG");
    assert!(log.starts_with("[[count 3 reason command context toplevel object keys username bob age-seconds"), "{log}");
    assert!(log.contains("[count 3 reason key context toplevel object b username bob"), "{log}");
    assert!(log.contains("[count 1 reason auth context toplevel object AUTH username bob"), "{log}");
    let slow = admin.run("SLOWLOG GET 100");
    assert!(!log.contains("hidden") && !slow.contains("hidden"), "{log}\n{slow}");
    for number in 0..500 {
        client.call(&[b"GET", format!("{number}{}", "x".repeat(10_000)).as_bytes()]);
        client.call(&[b"AUTH", "y".repeat(10_000).as_bytes(), b"z"]);
    }
    let Value::Array(entries) = admin.call(&[b"ACL", b"LOG", b"1000"]) else { panic!() };
    assert_eq!(entries.len(), 128);
    assert!(entries.iter().all(|entry| show(entry).len() < 1000));
    admin.script("CONFIG SET acllog-max-len 2 => OK\nCONFIG SET acllog-max-len 99999999 => !ERR CONFIG SET failed (possibly related to argument 'acllog-max-len') - argument must be between 0 and 65536 inclusive");
    client.run("GET c");
    let Value::Array(entries) = admin.call(&[b"ACL", b"LOG"]) else { panic!() };
    assert_eq!(entries.len(), 2);
    admin.script("ACL LOG RESET => OK\nACL LOG => []\nACL SAVE => !ERR there is no ACL file: start the server with --aclfile FILE");
}

#[test]
fn every_command_can_be_allowed_and_forbidden() {
    let shared = shared();
    let mut admin = Client::new(&shared);
    let Value::Array(commands) = admin.call(&[b"COMMAND", b"LIST"]) else { panic!() };
    assert!(commands.len() > 100);
    for command in commands {
        let name = show(&command);
        assert_eq!(admin.run(&format!("ACL SETUSER u reset +@all -{name}")), "OK", "{name}");
        assert_eq!(admin.run(&format!("ACL SETUSER u reset +{name}")), "OK", "{name}");
    }
    let Value::Array(categories) = admin.call(&[b"ACL", b"CAT"]) else { panic!() };
    for category in &categories {
        let Value::Array(_) = admin.call(&[b"ACL", b"CAT", show(category).as_bytes()]) else { panic!("{category:?}") };
        assert_eq!(admin.run(&format!("ACL SETUSER u reset +@{}", show(category))), "OK");
    }
    for bits in ["1", "5", "256", "4096"] {
        assert_eq!(admin.run(&format!("ACL GENPASS {bits}")).len(), bits.parse::<usize>().unwrap().div_ceil(4));
    }
    assert!(admin.run("ACL GENPASS 4097").starts_with("!ERR ACL GENPASS argument must be"));
    assert_ne!(admin.run("ACL GENPASS"), admin.run("ACL GENPASS"));
}

/// Regression: an idle client whose user was no longer in the file went on being shown what others do.
#[test]
fn clients_of_users_that_a_load_leaves_out_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users.acl");
    let all = "user default on nopass ~* &* +@all\nuser eve on nopass ~* +@all\n";
    std::fs::write(&file, format!("{all}user bob on nopass ~* +@all\n")).unwrap();
    let config = Config { aclfile: Some(file.clone()), ..Config::default() };
    let shared = Shared::new(Db::builder().in_memory().open().unwrap(), config, THREADS).unwrap();
    shared.acl().load().unwrap();
    let [mut admin, mut bob, mut eve] = [(); 3].map(|()| Client::new(&shared));
    bob.script("AUTH bob x => OK\nMONITOR => OK");
    eve.script("AUTH eve x => OK");
    std::fs::write(&file, "user bob on +nonsense").unwrap();
    assert!(admin.run("ACL LOAD").starts_with("!ERR") && !bob.session.client.is_killed());
    std::fs::write(&file, all).unwrap();
    assert_eq!(admin.run("ACL LOAD"), "OK");
    assert_eq!([&admin, &bob, &eve].map(|client| client.session.client.is_killed()), [false, true, false]);
    std::fs::write(&file, "user default on nopass ~* &* +@all\n").unwrap();
    assert_eq!(eve.run("ACL LOAD"), "OK");
    assert!(eve.session.closing && !eve.session.client.is_killed(), "it is told, and closed then");
}

/// Regression: taking back a new `requirepass` removed the password that ACL SETUSER had set.
#[test]
fn settings_that_are_refused_open_no_door() {
    let shared = shared();
    let mut admin = Client::new(&shared);
    admin.run("ACL SETUSER default resetpass >by-setuser");
    for line in [
        "CONFIG SET requirepass new timeout x",
        "CONFIG SET timeout x requirepass new",
        "CONFIG SET timeout 7 requirepass new maxclients x",
    ] {
        assert!(admin.run(line).starts_with("!ERR CONFIG SET failed"), "{line}");
        let mut late = Client::new(&shared);
        assert!(late.run("PING").starts_with("!NOAUTH"), "{line}");
        assert_eq!(late.run("AUTH by-setuser"), "OK", "{line}");
    }
    assert_eq!(admin.run("CONFIG GET timeout requirepass"), "[requirepass '' timeout 0]");
}

/// Regression: a very long password was acknowledged and not set, and instead of one that is not UTF-8 another was set.
#[test]
fn a_password_is_set_as_it_is_or_refused() {
    let shared = shared();
    let mut admin = Client::new(&shared);
    let long = "x".repeat(200_000);
    assert_eq!(show(&admin.call(&[b"CONFIG", b"SET", b"requirepass", long.as_bytes()])), "OK");
    assert!(Client::new(&shared).run("PING").starts_with("!NOAUTH"));
    assert_eq!(show(&Client::new(&shared).call(&[b"AUTH", long.as_bytes()])), "OK");
    let reply = show(&admin.call(&[b"CONFIG", b"SET", b"requirepass", b"\xff"]));
    assert_eq!(reply, "!ERR CONFIG SET failed (possibly related to argument 'requirepass') - argument is not UTF-8");
    assert_eq!(show(&Client::new(&shared).call(&[b"AUTH", long.as_bytes()])), "OK");
}

/// Regression: the file's rules of the default user were in force, but CONFIG GET showed a password that nobody could
/// log in with.
#[test]
fn a_file_that_names_the_default_user_goes_before_requirepass() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users.acl");
    let config = || Config { threads: 1, requirepass: Some("old".into()), aclfile: Some(file.clone()), ..Config::default() };
    std::fs::write(&file, "user default on >new ~* &* +@all\n").unwrap();
    let server = start_with(config());
    let mut client = connect(&server);
    assert!(say(&mut client, "AUTH old").starts_with("!WRONGPASS"));
    assert_eq!(say(&mut client, "AUTH new"), "OK");
    assert_eq!(say(&mut client, "CONFIG GET requirepass"), "[requirepass '']");
    server.stop();
    // While the file does not name the default user, `requirepass` is that user's password.
    std::fs::write(&file, "user eve on nopass ~* +@all\n").unwrap();
    let server = start_with(config());
    let mut client = connect(&server);
    assert_eq!(say(&mut client, "AUTH old"), "OK");
    assert_eq!(say(&mut client, "CONFIG GET requirepass"), "[requirepass old]");
    assert_eq!(say(&mut client, "ACL LOAD"), "OK");
    assert_eq!(say(&mut client, "CONFIG GET requirepass"), "[requirepass old]");
    std::fs::write(&file, "user default on >new ~* &* +@all\n").unwrap();
    assert_eq!(say(&mut client, "ACL LOAD"), "OK");
    assert_eq!(say(&mut client, "CONFIG GET requirepass"), "[requirepass '']");
    server.stop();
}

/// What a client changed before it sent ACL SAVE is in the file when it gets the reply, whichever clients save at the
/// same time.
#[test]
fn users_are_saved_for_all_who_ask() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users.acl");
    std::fs::write(&file, "").unwrap();
    let server = start_with(Config { threads: 2, aclfile: Some(file.clone()), ..Config::default() });
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (server, file) = (&server, &file);
            scope.spawn(move || {
                let mut stream = connect(server);
                for number in 0..10 {
                    send(&mut stream, &format!("ACL SETUSER user-{client}-{number} on nopass; ACL SAVE; PING"));
                    assert_eq!(receive(&mut stream, 3), ["OK", "OK", "PONG"]);
                    assert!(std::fs::read_to_string(file).unwrap().contains(&format!("user user-{client}-{number} on")));
                }
            });
        }
    });
    let mut client = connect(&server);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let reply = say(&mut client, "ACL SAVE");
    assert!(reply.starts_with("!ERR writing the ACL file"), "{reply}");
    assert!(say(&mut client, "INFO persistence").contains("rdb_last_bgsave_status:ok"), "that is SAVE's");
    server.stop();
}
