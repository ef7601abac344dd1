//! Removed collections: what commands report to the reaper.

use crate::common::{Client, shared};
use hither_server::data::reaper;

/// Regression: after one EXPIRE, all collections were looked at twice a minute for good.
#[test]
fn sweeps_go_on_as_long_as_a_collection_may_expire() {
    let mut client = Client::new(&shared());
    let swept = |client: &Client| {
        reaper::sweep(&client.shared.databases).unwrap();
        client.shared.databases.reaper.may_expire()
    };
    client.script("HSET h f v => 1\nSET s v EX 1000 => OK");
    assert!(!swept(&client));
    for expire in ["EXPIRE h 1000 => 1", "MULTI => OK\nEXPIRE h 1000 => QUEUED\nEXEC => [1]"] {
        client.script(expire);
        assert!(client.shared.databases.reaper.may_expire());
        client.script("COPY h i => 1\nMOVE i 1 => 1\nRENAME h i => OK");
        assert!(swept(&client) && swept(&client));
        client.script("PERSIST i => 1\nRENAME i h => OK");
        assert!(swept(&client), "there is one in another database");
        client.script("SELECT 1 => OK\nDEL i => 1\nSELECT 0 => OK");
        assert!(!swept(&client));
    }
    client.script("EXPIRE h 1000 NX => 1\nEXPIRE h 0 => 1");
    assert!(client.shared.databases.reaper.may_expire());
    assert!(!swept(&client));
}

#[test]
fn restored_collections_may_expire() {
    let mut client = Client::new(&shared());
    client.script("HSET h f v => 1");
    let hither_resp::Value::Bulk(payload) = client.call(&[b"DUMP", b"h"]) else { panic!("it is there") };
    client.call(&[b"RESTORE", b"i", b"0", &payload]);
    assert!(!client.shared.databases.reaper.may_expire());
    client.call(&[b"RESTORE", b"i", b"100000", &payload, b"REPLACE"]);
    assert!(client.shared.databases.reaper.may_expire());
}
