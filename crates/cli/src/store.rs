//! Opening the store and the keyspace that the command line names.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

use hither::{Builder, Db, Durability, Keyspace, KeyspaceOptions, MediumChoice, Progress};
use hither_server::data::databases;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::{Kind, Medium, StoreArgs};
use crate::failure::Failure;
use crate::output;
use crate::units::{self, Place, show_bytes};

/// What a command does where there is no store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Create it.
    Create,
    /// Fail with exit status 7.
    Refuse,
    /// Fail in the same way; the command only reads, so that with `--read-only` and `--salvage` nothing reaches the
    /// store.
    RefuseToRead,
}

/// Opens the store.
pub fn open(args: &StoreArgs, missing: Missing) -> Result<Db, Failure> {
    let only_reads = missing == Missing::RefuseToRead;
    let bar = recovery_bar(args.json);
    let shown = bar.clone();
    // A user who first looks at a damaged store may want to try something else next, so the store must not change.
    let builder = builder(args)?.read_only(only_reads && (args.read_only || args.salvage));
    let opened = builder.create(missing == Missing::Create).on_progress(move |progress| show(&shown, progress)).open();
    bar.finish_and_clear();
    let refused = |error| if args.salvage { Failure::Salvage { error, only_reads } } else { error.into() };
    let db = opened.map_err(refused)?;
    for damage in &db.recovery().salvaged {
        output::salvaged(&damage.to_string(), args.form());
    }
    let recovery = db.recovery();
    if !recovery.checkpoint_refused.is_empty() {
        let what =
            format!("the checkpoint of the indexes was not used ({}); the whole log was scanned instead", recovery.checkpoint_refused);
        output::note(&what, args.form());
    }
    tell_clock(args, &db);
    if args.capacity.or(args.max_capacity).is_some() {
        tell_other_size(args, &db);
    }
    Ok(db)
}

/// Differences between clocks of machines up to this are normal.
const CLOCK_TOLERANCE_MS: u64 = 60_000;

/// Warns if the store remembers a time that is yet to come: then keys expire early, or seem never to expire.
fn tell_clock(args: &StoreArgs, db: &Db) {
    let ahead_ms = db.recovery().clock_ahead_ms;
    if ahead_ms > CLOCK_TOLERANCE_MS {
        let what = format!(
            "the store's time is {} s ahead of this machine's clock, and keys expire by the store's time until the clock has caught up; set the \
             clock right, or, if it was wrong before, make a new store with `hither copy`",
            ahead_ms / 1000
        );
        output::warning(&what, args.form());
    }
}

/// Notes that the sizes of the command line are for new stores, if this store has others.
fn tell_other_size(args: &StoreArgs, db: &Db) {
    let pools = db.stats().pools;
    let per_pool = |bytes: u64| bytes.div_ceil(pools.len() as u64);
    let rounded = |bytes| pools.iter().map(|pool| per_pool(bytes).div_ceil(pool.segment_bytes).saturating_mul(pool.segment_bytes)).sum();
    let (has, may_have) = pools.iter().fold((0, 0), |(has, may), pool| (has + pool.capacity_bytes, may + pool.max_bytes));
    let differs = |asked: Option<u64>, is: u64| asked.map(rounded).is_some_and(|asked: u64| asked != is);
    // A store that has grown is larger than when it was created, so a smaller `--capacity` is no difference.
    if args.capacity.map(rounded).is_some_and(|asked: u64| asked > has) || differs(args.max_capacity, may_have) {
        let what = format!(
            "the store exists and keeps its size: {}, growing to {} at most; --capacity and --max-capacity are for new stores \
             (to change them, make one with `hither copy`)",
            show_bytes(has),
            show_bytes(may_have)
        );
        output::note(&what, args.form());
    }
}

/// The progress bar of the recovery of a large store.
fn recovery_bar(json: bool) -> ProgressBar {
    bar(json, "recovering {bar:40} {pos}/{len} segments  {msg}")
}

/// A progress bar on a terminal; `template` is one of indicatif.
pub fn bar(json: bool, template: &str) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10)).with_style(style)
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total);
    bar.set_message(format!("{} entries", progress.entries));
    bar.set_position(progress.done);
}

/// Opens the store for a report on all of it. If the command line names a keyspace, it must exist.
pub fn open_whole(args: &StoreArgs) -> Result<Db, Failure> {
    match args.keyspace {
        Some(_) => open_keyspace(args, Missing::RefuseToRead).map(|(db, _)| db),
        None => open(args, Missing::RefuseToRead),
    }
}

/// Opens the store and the keyspace for a command that needs both to exist.
pub fn open_keyspace(args: &StoreArgs, missing: Missing) -> Result<(Db, Keyspace), Failure> {
    Keyspace::check_name(args.keyspace())?;
    let db = open(args, missing)?;
    let keyspace = db.open_keyspace(args.keyspace())?.ok_or_else(|| no_keyspace(args.keyspace()))?;
    Ok((db, keyspace))
}

/// As [`open_keyspace`], for a command that changes the keyspace.
pub fn change_keyspace(args: &StoreArgs) -> Result<(Db, Keyspace), Failure> {
    let (db, keyspace) = open_keyspace(args, Missing::Refuse)?;
    ensure_no_servers(&db, args.keyspace())?;
    Ok((db, keyspace))
}

/// Refuses to write to the databases of a server. Entries of its keyspaces refer to one another, so a write to one of
/// them would cause wrong answers in others.
fn ensure_no_servers(db: &Db, name: &str) -> Result<(), Failure> {
    if !databases::is_served(db, name)? {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "keyspace \"{name}\" belongs to the databases of a server in this store; write to them through the server (`hither serve`), and load dumps of \
         databases into a new store before a server opens it"
    )))
}

/// Opens or creates the store and the keyspace for a command that writes. Refuses a kind other than that of an existing
/// keyspace.
pub fn create_keyspace(args: &StoreArgs, kind: Option<Kind>) -> Result<(Db, Keyspace), Failure> {
    Keyspace::check_name(args.keyspace())?;
    let db = open(args, Missing::Create)?;
    ensure_no_servers(&db, args.keyspace())?;
    let keyspace = match db.open_keyspace(args.keyspace())? {
        Some(keyspace) => keyspace,
        None => db.create_keyspace(args.keyspace(), options(kind.unwrap_or(Kind::Ordered)))?,
    };
    ensure_kind(&keyspace, kind)?;
    tell_volatile(args, &db);
    Ok((db, keyspace))
}

/// As [`create_keyspace`], but the store and the keyspace must exist.
pub fn continue_keyspace(args: &StoreArgs, kind: Option<Kind>) -> Result<(Db, Keyspace), Failure> {
    let (db, keyspace) = change_keyspace(args)?;
    ensure_kind(&keyspace, kind)?;
    tell_volatile(args, &db);
    Ok((db, keyspace))
}

/// Notes if writes at level `sync` go to a volatile medium. (With `forced-dax` on memory there is no note: that is for
/// trying out persistent memory.)
fn tell_volatile(args: &StoreArgs, db: &Db) {
    if args.durability != Durability::Sync {
        return;
    }
    let pools = db.stats().pools;
    if let Some(pool) = pools.iter().find(|pool| pool.medium == "volatile") {
        let what = format!(
            "{} is treated as volatile memory (medium volatile) and nothing is synced: data survives a crash of the program, but not a power loss",
            pool.path
        );
        output::note(&what, args.form());
    }
}

fn ensure_kind(keyspace: &Keyspace, asked: Option<Kind>) -> Result<(), Failure> {
    if asked.is_none_or(|asked| asked == kind_of(keyspace)) {
        return Ok(());
    }
    let (name, kind) = (keyspace.name(), keyspace.kind().name());
    Err(Failure::Usage(format!("keyspace \"{name}\" exists and is {kind}; choose another name or leave out --kind")))
}

/// Closes the store after a command that wrote.
pub fn close(db: Db, args: &StoreArgs) -> Result<(), Failure> {
    warn_of_spills(&db, args);
    Ok(db.close()?)
}

/// Warns once about nodes that were full while this program wrote, so that their threads wrote to other nodes.
pub fn warn_of_spills(db: &Db, args: &StoreArgs) {
    let pools = db.stats().pools;
    let full: Vec<_> = pools.iter().filter(|pool| pool.spills > 0).collect();
    let Some(first) = full.first() else { return };
    let names = full.iter().map(|pool| pool.node.to_string()).collect::<Vec<_>>().join(", ");
    let what = format!(
        "the pool of node {names} is full ({}): its threads wrote to other nodes, whose memory is slower to reach; delete or expire data, or \
         `hither copy` it into a new store with a larger --max-capacity",
        show_bytes(first.max_bytes)
    );
    output::warning(&what, args.form());
}

/// The directories of the command line, or of the environment.
pub fn places(args: &StoreArgs) -> Result<Vec<Place>, Failure> {
    if !args.data.is_empty() {
        return places_of(&args.data, "--data ");
    }
    match variable() {
        Some(value) => one_store(units::places_of_variable(&value)?, "--data "),
        None => Err(Failure::Usage("which store? Give --data DIR, or set HITHER_DATA".into())),
    }
}

/// The directories of the environment; an empty variable counts as unset.
pub fn variable() -> Option<OsString> {
    std::env::var_os("HITHER_DATA").filter(|value| value.as_bytes().iter().any(|byte| *byte != b':'))
}

/// Parses the directories of a store; `option` is the text before each of them in the advice.
pub fn places_of(names: &[OsString], option: &str) -> Result<Vec<Place>, Failure> {
    one_store(names.iter().map(|text| units::place(text)).collect::<Result<_, _>>()?, option)
}

fn one_store(places: Vec<Place>, option: &str) -> Result<Vec<Place>, Failure> {
    if places.len() == 1 || places.iter().all(|place| matches!(place, Place::Node(..))) {
        return Ok(places);
    }
    Err(Failure::Usage(format!("several directories make one store only as {option}node0=DIR {option}node1=DIR …")))
}

/// Sets these directories.
pub fn at(builder: Builder, places: Vec<Place>) -> Builder {
    places.into_iter().fold(builder, |builder, place| match place {
        Place::Store(path) => builder.path(path),
        Place::Node(node, path) => builder.node_path(node, path),
    })
}

/// Sets the sizes of a new store that the command line gives.
pub fn sized(mut builder: Builder, args: &StoreArgs) -> Builder {
    if let Some(bytes) = args.capacity {
        builder = builder.capacity(bytes);
    }
    if let Some(bytes) = args.max_capacity {
        builder = builder.max_capacity(bytes);
    }
    builder
}

pub(crate) fn builder(args: &StoreArgs) -> Result<Builder, Failure> {
    let mut builder =
        Db::builder().durability(args.durability).medium(medium(args.medium)).salvage(args.salvage).checkpoints(args.checkpoints);
    builder = sized(at(builder, places(args)?), args);
    if let Some(percent) = args.utilization {
        builder = builder.utilization(percent);
    }
    if let Some(patience) = args.space_patience {
        builder = builder.space_patience(patience);
    }
    if let Some(bytes) = args.cache_bytes {
        builder = builder.cache_bytes(bytes);
    }
    Ok(builder)
}

/// The library's value for a medium.
pub fn medium(medium: Medium) -> MediumChoice {
    match medium {
        Medium::Auto => MediumChoice::Auto,
        Medium::ForcedDax => MediumChoice::ForcedDax,
        Medium::File => MediumChoice::File,
        Medium::Volatile => MediumChoice::Volatile,
    }
}

fn options(kind: Kind) -> KeyspaceOptions {
    match kind {
        Kind::Ordered => KeyspaceOptions::ordered(),
        Kind::Hash => KeyspaceOptions::hash(),
    }
}

fn kind_of(keyspace: &Keyspace) -> Kind {
    match keyspace.kind() {
        hither::Kind::Hash => Kind::Hash,
        _ => Kind::Ordered,
    }
}

fn no_keyspace(name: &str) -> Failure {
    Failure::NotFound(format!("there is no keyspace \"{name}\"; `hither keyspaces` lists those that exist"))
}
