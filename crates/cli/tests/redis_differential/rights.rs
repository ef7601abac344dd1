//! Rights: what every command needs, what is refused and how, and the log of refusals.

use crate::commands::{COMMANDS, fill};
use crate::pair::{Servers, random};
use hither_resp::Value;

/// Commands for which only rights and keys are compared.
const ALSO: &[&str] = &[
    "SORT {k} BY x STORE {k}",
    "RESTORE {k} 0 x",
    "DUMP {k}",
    "BGSAVE",
    "LASTSAVE",
    "BGREWRITEAOF",
    "SLAVEOF NO ONE",
    "ROLE",
    "WAIT 0 0",
    "OBJECT ENCODING {k}",
    "CLIENT LIST",
    "MONITOR",
    "SET {k} {v} GET",
    "COMMAND GETKEYSANDFLAGS GET {k}",
];

/// Users whose rights are compared for every command, with keys `k1` to `k6`.
const USERS: &[&str] = &[
    "on nopass +@all %R~k1 %W~k2 ~k3 %RW~l*",
    "on nopass +@all %R~k*",
    "on nopass +@all %W~k*",
    "on nopass +@read ~*",
    "on nopass +@write -@string ~*",
    "on nopass +@all -@dangerous ~*",
    "on nopass +@fast ~*",
    "on nopass +@slow +@connection ~*",
    "on nopass +@hash +@sortedset ~k[1-3]",
    "on nopass +@bitmap +lcs ~k[1-3] %R~k4 %W~k5",
    "on nopass +@keyspace -del ~*",
    "on nopass +@transaction +@admin +client|id ~*",
    "on nopass +get ~k1 (+set ~k2) (+@hash %R~k3)",
    "off nopass allcommands allkeys",
];

/// Sent to both servers by a user with few rights, `low`: `+@read +multi +exec +discard +client|id -mget %R~r:* %W~w:*
/// ~a`.
const SCRIPT: &[&str] = &[
    "AUTH low wrong",
    "AUTH nobody wrong",
    "AUTH low low extra",
    "AUTH low secret",
    "GET a",
    "GET r:1",
    "GET w:1",
    "GET b",
    "SET a 1",
    "MGET a r:1",
    "EXISTS a w:1 r:1",
    "EXISTS a b",
    "ZUNION 2 a b",
    "ZUNION 2 a r:1",
    "ZUNION 9 b",
    "ZUNION 0 b",
    "ZINTERCARD 3 b b",
    "SORT_RO a BY w*",
    "SORT_RO a GET w*",
    "CLIENT ID extra",
    "CLIENT LIST",
    "CONFIG GET x",
    "ACL WHOAMI",
    "NOTHING a",
    "GET",
    "MULTI",
    "GET b",
    "GET a",
    "EXEC",
    "MULTI",
    "GET a",
    "SET a 1",
    "EXEC",
    "MULTI",
    "GET a",
    "EXEC",
    "WATCH a",
    "QUIT",
];

/// Sent to both servers by an administrator.
const ADMINISTRATION: &[&str] = &[
    "ACL SETUSER x +nonsense",
    "ACL SETUSER x +@nonsense",
    "ACL SETUSER x <nothing",
    "ACL SETUSER x !nothing",
    "ACL SETUSER x #abc",
    "ACL SETUSER x nothing",
    "ACL SETUSER x %Q~a",
    "ACL SETUSER x %~a",
    "ACL SETUSER x +",
    "ACL SETUSER x +config|nothing",
    "ACL SETUSER x allkeys ~a",
    "ACL SETUSER x allchannels &a",
    "ACL SETUSER x (+get",
    "ACL SETUSER x +get)",
    "ACL SETUSER x (+get ~a) (%W~b +@write)",
    "ACL GETUSER x",
    "ACL LIST",
    "ACL USERS",
    "ACL GETUSER nobody",
    "ACL DELUSER default",
    "ACL DELUSER nobody x",
    "ACL WHOAMI",
    "ACL WHOAMI extra",
    "ACL CAT",
    "ACL CAT nothing",
    "ACL CAT read extra",
    "ACL GENPASS 0",
    "ACL GENPASS x",
    "ACL GENPASS 4097",
    "ACL DRYRUN nobody GET a",
    "ACL DRYRUN default NOTHING a",
    "ACL DRYRUN default GET",
    "ACL DRYRUN default GET a",
    "ACL DRYRUN x ZUNION 9 q",
    "ACL DRYRUN x ZUNIONSTORE q 9 q",
    "ACL LOG x",
    "ACL NOTHING",
    "ACL",
    "CLIENT KILL USER nobody",
    "CLIENT KILL ID x",
    "CLIENT KILL ID 0",
    "CLIENT LIST ID x",
    "CLIENT LIST TYPE",
    "CONFIG SET timeout 0 timeout 0",
    "CONFIG SET timeout 0 TIMEOUT x",
    "CONFIG SET nothing 1 nothing 1",
    "COMMAND INFO nothing",
    "AUTH anything",
    "AUTH default anything",
    "HELLO 2 AUTH default anything SETNAME",
    "HELLO 2 AUTH nobody anything",
    // Not among the generated commands, since Redis writes to a disk then.
    "SAVE",
    "BGSAVE BAD",
    "BGSAVE SCHEDULE EXTRA",
    "LASTSAVE EXTRA",
    "BGREWRITEAOF EXTRA",
    "SWAPDB 0 1 2",
    "SWAPDB 99999999999 0",
    "SWAPDB 0 x",
    "REPLICAOF NO",
];

#[test]
fn rights_are_those_of_redis() {
    let (mut random, servers) = (random(), Servers::start());
    let mut admin = servers.connect();
    for line in ADMINISTRATION {
        admin.line(line);
    }
    for (number, rules) in USERS.iter().enumerate() {
        admin.line(&format!("ACL SETUSER u{number} {rules}"));
        for template in COMMANDS.iter().chain(ALSO) {
            let command = fill(template, &mut random);
            let dry = ["ACL".into(), "DRYRUN".into(), format!("u{number}")];
            admin.run(&dry.into_iter().chain(command.clone()).collect::<Vec<_>>());
            for sub in ["GETKEYS", "GETKEYSANDFLAGS"] {
                admin.run(&["COMMAND".into(), sub.into()].into_iter().chain(command.clone()).collect::<Vec<_>>());
            }
        }
    }
    admin.line("ACL SETUSER low on >secret +@read +multi +exec +discard +client|id -mget %R~r:* %W~w:* ~a");
    admin.line("SET a 1");
    let mut low = servers.connect();
    for line in SCRIPT {
        low.line(line);
    }
    // Without the fields that differ: the age, and the description of clients.
    let logs = admin.clients.each_mut().map(|client| {
        let Value::Array(entries) = client.run("ACL LOG 100") else { panic!() };
        let fields = |entry| match entry {
            Value::Array(fields) => fields[..10].to_vec(),
            other => panic!("{other:?}"),
        };
        entries.into_iter().map(fields).collect::<Vec<_>>()
    });
    assert!(!logs[1].is_empty());
    assert_eq!(logs[0], logs[1], "left hither, right Redis");
}
