//! One thread's operations on a target: builds keys and values, calls the session, checks everything that comes back.
//!
//! Thread safety: a worker belongs to its thread. Invariant: no value, pair or absence goes unchecked; the first thing that is
//! wrong ends the run with [`Error::WrongData`].

use crate::target::{Error, Result, Session};
use crate::workload::data::DataSet;
use crate::workload::stream::{Op, OpKind, Stream};
use crate::workload::{Kind, Workload};

/// Scans that end early because they start near the last key: counted, and compared with what chance explains.
#[derive(Clone, Copy, Debug, Default)]
struct Scans {
    all: u64,
    short: u64,
    asked: u64,
}

pub(super) struct Worker<'d, S> {
    session: S,
    data: &'d DataSet,
    kind: Kind,
    key: Vec<u8>,
    value: Vec<u8>,
    group_keys: Vec<Vec<u8>>,
    group_values: Vec<Vec<u8>>,
    last_key: Vec<u8>,
    version: u32,
    checked: u64,
    scans: Scans,
}

impl<'d, S: Session> Worker<'d, S> {
    /// `epoch` tells the versions of one phase and thread from those of others.
    pub(super) fn new(session: S, data: &'d DataSet, workload: &Workload, epoch: u32) -> Self {
        let group = workload.kind.group() as usize;
        Self {
            session,
            data,
            kind: workload.kind,
            key: data.key_buffer(),
            value: vec![0; data.value_bytes()],
            group_keys: vec![data.key_buffer(); group],
            group_values: vec![vec![0; data.value_bytes()]; group],
            last_key: Vec::with_capacity(data.key_bytes()),
            version: epoch << 24,
            checked: 0,
            scans: Scans::default(),
        }
    }

    pub(super) fn checked(&self) -> u64 {
        self.checked
    }

    /// Makes the next call; how many operations it was.
    #[inline]
    pub(super) fn call(&mut self, stream: &mut Stream) -> Result<u64> {
        match self.kind {
            Kind::MultiGet(_) => self.multi_get(stream),
            Kind::LoadBatch(_) | Kind::PutBatch(_) => self.put_batch(stream),
            _ => self.step(stream.take()).map(|()| 1),
        }
    }

    /// Makes the next call of a kind without groups; what it was.
    #[inline]
    pub(super) fn single(&mut self, stream: &mut Stream) -> Result<OpKind> {
        let op = stream.take();
        self.step(op).map(|()| op.kind())
    }

    #[inline]
    fn step(&mut self, op: Op) -> Result<()> {
        self.data.key(op.id(), &mut self.key);
        match op.kind() {
            OpKind::Get => self.get(),
            OpKind::Put => self.put(),
            OpKind::Delete => self.delete(),
            OpKind::Rmw => self.rmw(),
            OpKind::Scan => self.scan(op.length()),
        }
    }

    #[inline]
    fn next_version(&mut self) -> u32 {
        let version = self.version;
        self.version = version.wrapping_add(1);
        version
    }

    #[inline]
    fn get(&mut self) -> Result<()> {
        let (data, key) = (self.data, &self.key);
        let mut sound = false;
        let found = self.session.get(key, |value| sound = data.check(key, value).is_some())?;
        self.checked += 1;
        if found && sound { Ok(()) } else { Err(wrong("get", key, if found { "a value that was never written" } else { "nothing" })) }
    }

    #[inline]
    fn put(&mut self) -> Result<()> {
        let version = self.next_version();
        let value = &mut self.value[..self.data.value_bytes_of(&self.key)];
        self.data.value(&self.key, version, value);
        self.session.put(&self.key, value)
    }

    #[inline]
    fn delete(&mut self) -> Result<()> {
        let found = self.session.delete(&self.key)?;
        self.checked += 1;
        if found { Ok(()) } else { Err(wrong("delete", &self.key, "nothing")) }
    }

    fn rmw(&mut self) -> Result<()> {
        let (version, data, key) = (self.next_version(), self.data, &self.key);
        let mut sound = false;
        self.session.read_modify_write(key, |old, new| {
            sound = old.is_some_and(|old| data.check(key, old).is_some());
            new.resize(data.value_bytes_of(key), 0);
            data.value(key, version, new);
        })?;
        self.checked += 1;
        if sound { Ok(()) } else { Err(wrong("read-modify-write", key, "no sound value")) }
    }

    /// A scan starts at a key that is there, rises strictly, and every value belongs to its key.
    fn scan(&mut self, limit: u32) -> Result<()> {
        let (data, from, last) = (self.data, &self.key, &mut self.last_key);
        last.clear();
        let (mut seen, mut sound) = (0usize, true);
        let count = self.session.scan(from, limit as usize, |key, value| {
            let in_order = if seen == 0 { key == from.as_slice() } else { rises(last, key) };
            sound &= in_order && data.check(key, value).is_some();
            last.clear();
            last.extend_from_slice(key);
            seen += 1;
        })?;
        self.checked += seen as u64;
        self.scans.all += 1;
        self.scans.asked += u64::from(limit);
        self.scans.short += u64::from(count < limit as usize);
        let complete = seen == count && (1..=limit as usize).contains(&count);
        if sound && complete { Ok(()) } else { Err(wrong("scan", from, "pairs that are wrong, missing or out of order")) }
    }

    fn fill_keys(&mut self, stream: &mut Stream) -> usize {
        let n = stream.remaining().min(self.group_keys.len() as u64) as usize;
        for key in &mut self.group_keys[..n] {
            self.data.key(stream.take().id(), key);
        }
        n
    }

    fn multi_get(&mut self, stream: &mut Stream) -> Result<u64> {
        let n = self.fill_keys(stream);
        let (data, keys) = (self.data, &self.group_keys[..n]);
        let mut sound = 0u64;
        self.session.multi_get(keys, |i, value| {
            sound += u64::from(value.is_some_and(|value| data.check(&keys[i], value).is_some()));
        })?;
        self.checked += n as u64;
        if sound == n as u64 { Ok(sound) } else { Err(wrong("multi-get", &keys[0], "not every value (first key given)")) }
    }

    fn put_batch(&mut self, stream: &mut Stream) -> Result<u64> {
        let n = self.fill_keys(stream);
        let version = self.next_version();
        for (key, value) in self.group_keys[..n].iter().zip(&mut self.group_values[..n]) {
            value.resize(self.data.value_bytes_of(key), 0);
            self.data.value(key, version, value);
        }
        self.session.put_batch(&self.group_keys[..n], &self.group_values[..n])?;
        Ok(n as u64)
    }

    /// Called at the end: scans may be short only as often as chance lets them start near the last key.
    pub(super) fn finish(&self, keys: u64) -> Result<()> {
        let explained = 10.0 + 5.0 * self.scans.asked as f64 / keys.max(1) as f64;
        if self.scans.short as f64 > explained {
            return Err(Error::WrongData(format!("{} of {} scans ended early", self.scans.short, self.scans.all)));
        }
        Ok(())
    }

    /// Reads one key as part of a verification: present and sound, or absent.
    pub(super) fn verify(&mut self, id: u64, present: bool) -> Result<()> {
        self.data.key(id, &mut self.key);
        if present {
            return self.get();
        }
        match self.session.get(&self.key, |_| {})? {
            false => Ok(()),
            true => Err(wrong("get", &self.key, "a value after its delete")),
        }
    }
}

/// Whether `next` comes after `last`. Words are compared as words: the library's comparison loads vectors, which must wait until the
/// shorter stores of a key that was just copied have left the processor's store buffer.
#[inline]
fn rises(last: &[u8], next: &[u8]) -> bool {
    match (<[u8; 8]>::try_from(last), <[u8; 8]>::try_from(next)) {
        (Ok(last), Ok(next)) => u64::from_be_bytes(last) < u64::from_be_bytes(next),
        _ => last < next,
    }
}

#[cold]
fn wrong(operation: &str, key: &[u8], got: &str) -> Error {
    let hex: String = key.iter().take(16).map(|b| format!("{b:02x}")).collect();
    Error::WrongData(format!("{operation} of key {hex} gave {got}"))
}
