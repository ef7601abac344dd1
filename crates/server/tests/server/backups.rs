//! Backups that SAVE and BGSAVE make while clients go on.

use crate::common::{Stop, connect, say as ask, start_with, until};
use hither::Db;
use hither_server::net::StartError;
use hither_server::saving::Work;
use hither_server::{Config, Server};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

fn config(directory: &Path) -> Config {
    Config { threads: 2, backup_dir: Some(directory.to_owned()), ..Config::default() }
}

/// The contents of the directory, in order.
fn in_it(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
}

/// A server on this backup.
fn serve(backup: &Path) -> (Server, TcpStream) {
    let db = Db::builder().path(backup).create(false).open().unwrap();
    assert!(db.check().unwrap().is_sound());
    let server = Server::start(db, Config { port: 0, threads: 1, ..Config::default() }).unwrap();
    let client = connect(&server);
    (server, client)
}

#[test]
fn a_backup_has_all_databases_of_one_moment_and_can_be_served() {
    let directory = TempDir::new().unwrap();
    let server = start_with(config(directory.path()));
    let mut client = connect(&server);
    for line in ["SET s 1", "HSET h a 1 b 2", "ZADD z 1 m 2 n", "PEXPIREAT h 9999999999999", "SELECT 3", "HSET other f 3"] {
        ask(&mut client, line);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = connect(&server);
            for number in 1.. {
                // A hash and a sorted set whose lengths follow a counter; now and then all are made anew.
                let lines = if number % 20 == 0 { "DEL th tz; SET tn 0" } else { "INCR tn" };
                for line in format!("MULTI; {lines}; HSET th f{number} 1; ZADD tz {number} m{number}; EXEC").split("; ") {
                    ask(&mut client, line);
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _stop = Stop(&stop);
        until(|| server.shared().total_calls() > 200);
        for _ in 0..2 {
            assert_eq!(ask(&mut client, "BGSAVE"), "Background saving started");
            until(|| !server.shared().saving.is_running(Work::Save));
            assert!(ask(&mut client, "INFO persistence").contains("rdb_last_bgsave_status:ok"));
        }
    });
    let backups = in_it(directory.path());
    assert!(backups.len() == 2 && backups.iter().all(|path| path.to_str().unwrap().ends_with('Z')), "{backups:?}");
    for backup in backups {
        let (server, mut client) = serve(&backup);
        for (line, reply) in [
            ("GET s", "1"),
            ("HGETALL h", "[a 1 b 2]"),
            ("PEXPIRETIME h", "9999999999999"),
            ("ZRANGE z 0 -1 WITHSCORES", "[m 1 n 2]"),
            ("SELECT 3", "OK"),
            ("HGET other f", "3"),
            ("SELECT 0", "OK"),
        ] {
            assert_eq!(ask(&mut client, line), reply, "{line}");
        }
        let [long, fields, members] = ["GET tn", "HLEN th", "ZCARD tz"].map(|line| ask(&mut client, line));
        let (long, has): (u64, u64) = (long.parse().unwrap(), fields.parse().unwrap());
        // One more than the counter, since they were made anew.
        assert!(fields == members && (long..=long + 1).contains(&has), "{long} {fields} {members}");
        // What is counted exists.
        assert_eq!(ask(&mut client, "HKEYS th").split(' ').count().to_string(), fields);
        assert_eq!(ask(&mut client, "ZRANGE tz 0 -1").split(' ').count().to_string(), members);
        // The backup works as a store of its own.
        assert_eq!(ask(&mut client, "HSET new f 1"), "1");
        assert_eq!(ask(&mut client, "HGETALL new"), "[f 1]");
        server.stop();
    }
    server.stop();
}

/// Flushes take away whatever a backup is copying: the backup begins again, or there is none.
#[test]
fn a_backup_beside_flushes_is_of_one_moment_or_none() {
    let directory = TempDir::new().unwrap();
    let server = start_with(config(directory.path()));
    let mut client = connect(&server);
    let stop = AtomicBool::new(false);
    let replies = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = connect(&server);
            while !stop.load(Ordering::Relaxed) {
                for line in ["FLUSHALL", "MULTI", "HSET a f 1", "ZADD b 1 m", "SET c 1", "EXEC"] {
                    ask(&mut client, line);
                }
                // Long enough for some backups, and too short for others.
                std::thread::sleep(std::time::Duration::from_millis(250));
            }
        });
        let _stop = Stop(&stop);
        [(); 4].map(|()| ask(&mut client, "SAVE"))
    });
    let made = replies.iter().filter(|reply| *reply == "OK").count();
    assert!(replies.iter().all(|reply| reply == "OK" || reply.starts_with("!ERR no backup was made")), "{replies:?}");
    let backups = in_it(directory.path());
    assert_eq!(backups.len(), made, "{backups:?}");
    for backup in backups {
        let (server, mut client) = serve(&backup);
        let there = ask(&mut client, "EXISTS a b c");
        assert!(there == "0" || there == "3", "{there}");
        if there == "3" {
            assert_eq!(ask(&mut client, "HGETALL a") + &ask(&mut client, "ZRANGE b 0 -1"), "[f 1][m]");
        }
        server.stop();
    }
    server.stop();
}

#[test]
fn a_backup_that_fails_is_told_and_nothing_is_left_of_it() {
    let parent = TempDir::new().unwrap();
    let directory = parent.path().join("backups");
    std::fs::create_dir(&directory).unwrap();
    let server = start_with(config(&directory));
    let mut client = connect(&server);
    ask(&mut client, "SET s 1");
    std::fs::remove_dir(&directory).unwrap();
    for is_file in [false, true] {
        if is_file {
            std::fs::write(&directory, "in its way").unwrap();
        }
        assert_eq!(ask(&mut client, "SAVE"), "!ERR no backup was made; the server's log says why");
        assert_eq!(directory.exists(), is_file, "somebody's disk is not mounted: it is not made elsewhere");
    }
    assert!(ask(&mut client, "INFO persistence").contains("rdb_last_bgsave_status:err"));
    assert_eq!(ask(&mut client, "SET s 2"), "OK");
    std::fs::remove_file(&directory).unwrap();
    std::fs::create_dir(&directory).unwrap();
    assert_eq!(ask(&mut client, "SAVE"), "OK");
    assert!(ask(&mut client, "INFO persistence").contains("rdb_last_bgsave_status:ok"));
    assert_eq!(in_it(&directory).len(), 1);
    server.stop();
}

#[test]
fn a_server_ends_in_the_middle_of_a_backup() {
    let directory = TempDir::new().unwrap();
    let server = start_with(config(directory.path()));
    let mut client = connect(&server);
    for number in 0..200 {
        let fields: String = (0..200).map(|field| format!(" {number}.{field} {field}")).collect();
        ask(&mut client, &format!("HSET h{number}{fields}"));
    }
    ask(&mut client, "BGSAVE");
    server.stop();
    // A backup may have been made just before the stop.
    for backup in in_it(directory.path()) {
        assert_eq!(ask(&mut serve(&backup).1, "HLEN h199"), "200");
    }
}

#[test]
fn a_server_without_its_directory_does_not_start() {
    let db = Db::builder().in_memory().open().unwrap();
    let Err(error) = Server::start(db, Config { port: 0, ..config(Path::new("/nowhere/to/be")) }) else { panic!("it has started") };
    assert!(matches!(&error, StartError::Backup(_)) && error.to_string().contains("/nowhere/to/be is no directory"), "{error}");
}
