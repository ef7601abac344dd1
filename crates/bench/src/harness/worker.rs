//! The operations of one thread on a target: builds keys and values, calls the session, and checks everything that
//! comes back.
//!
//! Thread safety: a worker belongs to its thread. Invariant: no value, pair or absence goes unchecked; the first wrong
//! one ends the run with [`Error::WrongData`].

use std::convert::Infallible;

use crate::target::{Error, Result, Session};
use crate::workload::data::{DataSet, is_long_version_of, is_version_of};
use crate::workload::stream::{Op, OpKind, Stream};
use crate::workload::{Kind, Workload};

/// Counts scans that end early because they start near the last key, for a comparison with their expected number.
#[derive(Clone, Copy, Debug, Default)]
struct Scans {
    all: u64,
    short: u64,
    asked: u64,
}

/// Most calls that are prepared together. Between one group and the next a processor has no calls under way, so groups
/// are not small.
const AHEAD: usize = 128;

/// Length of the longest values that are prepared.
const LONGEST_AHEAD: usize = 256;

/// Most bytes that prepared values of more than eight bytes take together. They stay in a processor's first-level
/// cache.
const AHEAD_BYTES: usize = 8 << 10;

/// The data of a prepared call with a short key.
#[derive(Clone, Copy)]
struct Prepared {
    op: Op,
    key: [u8; 8],
    /// For a put of eight bytes, the value. For a get, the first word of the value's first version, by which the value
    /// is checked.
    value: [u8; 8],
}

pub(super) struct Worker<'d, S> {
    session: S,
    data: &'d DataSet,
    kind: Kind,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Prepared calls; empty if keys are not short or values are too long.
    ahead: Vec<Prepared>,
    /// The values of the prepared puts, if they are longer than eight bytes.
    long_values: Vec<u8>,
    group_keys: Vec<Vec<u8>>,
    group_values: Vec<Vec<u8>>,
    last_key: Vec<u8>,
    version: u32,
    checked: u64,
    scans: Scans,
}

impl<'d, S: Session> Worker<'d, S> {
    /// `epoch` determines where versions begin, so that most overwrites change the value. Two phases or threads may use
    /// the same versions: only eight bits of the epoch count, and a thread that writes more than 2²⁴ times reaches the
    /// versions of others. No check depends on that, because any version of a key's value is sound.
    pub(super) fn new(session: S, data: &'d DataSet, workload: &Workload, epoch: u32) -> Self {
        let group = workload.kind.group() as usize;
        let prepared = data.fixed_value_bytes().filter(|bytes| data.key_bytes() == 8 && (8..=LONGEST_AHEAD).contains(bytes));
        let ahead = prepared.map_or(0, |bytes| AHEAD.min(AHEAD_BYTES / bytes));
        let none = Prepared { op: Op::new(OpKind::Get, 0), key: [0; 8], value: [0; 8] };
        Self {
            ahead: vec![none; ahead],
            long_values: vec![0; prepared.filter(|bytes| *bytes > 8).map_or(0, |bytes| ahead * bytes)],
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

    /// Makes the next call; returns how many operations it was.
    #[inline]
    pub(super) fn call(&mut self, stream: &mut Stream) -> Result<u64> {
        self.calls(stream, 1)
    }

    /// Makes up to `calls` calls, fewer if the operations run out; returns how many operations they were.
    #[inline(always)]
    pub(super) fn calls(&mut self, stream: &mut Stream, calls: u64) -> Result<u64> {
        match self.kind {
            Kind::MultiGet(_) => repeat(calls, stream, |stream| self.multi_get(stream)),
            Kind::LoadBatch(_) | Kind::PutBatch(_) => repeat(calls, stream, |stream| self.put_batch(stream)),
            _ if self.ahead.is_empty() => stream.each(calls, |op| self.step(op)),
            _ if self.long_values.is_empty() => self.prepared_calls(stream, calls),
            _ => self.prepared_long_calls(stream, calls),
        }
    }

    /// Prepares calls before it makes them, because programs usually have had their keys and values for longer than a
    /// nanosecond. Otherwise each call would first read what has just been stored; the processor would wait for that,
    /// and begin no call before the previous one has its data.
    #[inline(always)]
    fn prepared_calls(&mut self, stream: &mut Stream, calls: u64) -> Result<u64> {
        let mut ahead = std::mem::take(&mut self.ahead);
        let mut ops = 0;
        while ops < calls && stream.remaining() > 0 {
            let count = self.prepare(stream, &mut ahead, calls - ops);
            // A plain loop: an iterator adapter or a kept result would live in memory, and each call would wait until
            // the previous one has stored it.
            for call in &ahead[..count] {
                self.step_on(call.op, &call.key, Some(&call.value))?;
            }
            ops += count as u64;
        }
        self.ahead = ahead;
        Ok(ops)
    }

    /// As [`Worker::prepared_calls`], with values of more than eight bytes.
    #[inline(always)]
    fn prepared_long_calls(&mut self, stream: &mut Stream, calls: u64) -> Result<u64> {
        let (mut ahead, mut values) = (std::mem::take(&mut self.ahead), std::mem::take(&mut self.long_values));
        let bytes = self.data.value_bytes();
        let mut ops = 0;
        while ops < calls && stream.remaining() > 0 {
            let count = self.prepare(stream, &mut ahead, calls - ops);
            for (call, value) in ahead[..count].iter().zip(values.chunks_exact_mut(bytes)) {
                if call.op.kind() == OpKind::Put {
                    self.data.value(&call.key, self.next_version(), value);
                }
            }
            for (call, value) in ahead[..count].iter().zip(values.chunks_exact(bytes)) {
                match call.op.kind() {
                    OpKind::Get => self.get_checked_by(&call.key, |value| is_long_version_of(call.value, bytes, value))?,
                    OpKind::Put => self.session.put(&call.key, value)?,
                    _ => self.step_otherwise(call.op, &call.key)?,
                }
            }
            ops += count as u64;
        }
        (self.ahead, self.long_values) = (ahead, values);
        Ok(ops)
    }

    /// Fills the first places of `ahead`, at most `most`, except for values of more than eight bytes; returns how many
    /// it filled.
    #[inline(always)]
    fn prepare(&mut self, stream: &mut Stream, ahead: &mut [Prepared], most: u64) -> usize {
        let mut count = 0;
        let most = most.min(ahead.len() as u64);
        let Ok(_) = stream.each(most, |op| -> std::result::Result<(), Infallible> {
            let call = &mut ahead[count];
            count += 1;
            (call.op, call.key) = (op, self.data.short_key(op.id()).unwrap_or_default());
            match op.kind() {
                OpKind::Put if self.data.value_bytes() == 8 => self.data.value(&call.key, self.next_version(), &mut call.value),
                OpKind::Put => {}
                _ => call.value = self.data.first_word(call.key),
            }
            Ok(())
        });
        count
    }

    #[inline(always)]
    fn step(&mut self, op: Op) -> Result<()> {
        match self.data.short_key(op.id()) {
            Some(key) => self.step_on(op, &key, None),
            None => self.step_on_long(op),
        }
    }

    #[inline(never)]
    fn step_on_long(&mut self, op: Op) -> Result<()> {
        let mut key = std::mem::take(&mut self.key);
        self.data.key(op.id(), &mut key);
        let done = self.step_on(op, &key, None);
        self.key = key;
        done
    }

    /// `value`, if it was prepared, is the value of a put, or the word by which a get is checked.
    #[inline(always)]
    fn step_on(&mut self, op: Op, key: &[u8], value: Option<&[u8; 8]>) -> Result<()> {
        match (op.kind(), value) {
            (OpKind::Get, Some(&first)) => self.get_checked_by(key, move |value| is_version_of(first, value)),
            (OpKind::Put, Some(value)) => self.session.put(key, value),
            (OpKind::Get, None) => self.get(key),
            (OpKind::Put, None) => self.put(key),
            _ => self.step_otherwise(op, key),
        }
    }

    /// The slower operations; they need not be part of the loop.
    #[inline(never)]
    fn step_otherwise(&mut self, op: Op, key: &[u8]) -> Result<()> {
        match op.kind() {
            OpKind::Get => self.get(key),
            OpKind::Put => self.put(key),
            OpKind::Delete => self.delete(key),
            OpKind::Rmw => self.rmw(key),
            OpKind::Scan => self.scan(key, op.length()),
        }
    }

    #[inline(always)]
    fn next_version(&mut self) -> u32 {
        let version = self.version;
        self.version = version.wrapping_add(1);
        version
    }

    #[inline(always)]
    fn get(&mut self, key: &[u8]) -> Result<()> {
        let data = self.data;
        self.get_checked_by(key, |value| data.check(key, value).is_some())
    }

    #[inline(always)]
    fn get_checked_by(&mut self, key: &[u8], check: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let sound = self.session.get(key, check)?;
        self.checked += 1;
        if sound == Some(true) {
            return Ok(());
        }
        match sound {
            Some(_) => Err(wrong("get", key, "a value that was never written")),
            None => Err(wrong("get", key, "nothing")),
        }
    }

    #[inline(always)]
    fn put(&mut self, key: &[u8]) -> Result<()> {
        let version = self.next_version();
        let value = &mut self.value[..self.data.value_bytes_of(key)];
        self.data.value(key, version, value);
        self.session.put(key, value)
    }

    #[inline(always)]
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let found = self.session.delete(key)?;
        self.checked += 1;
        if found { Ok(()) } else { Err(wrong("delete", key, "nothing")) }
    }

    fn rmw(&mut self, key: &[u8]) -> Result<()> {
        let (version, data) = (self.next_version(), self.data);
        let mut sound = false;
        self.session.read_modify_write(key, |old, new| {
            sound = old.is_some_and(|old| data.check(key, old).is_some());
            new.resize(data.value_bytes_of(key), 0);
            data.value(key, version, new);
        })?;
        self.checked += 1;
        if sound { Ok(()) } else { Err(wrong("read-modify-write", key, "no sound value")) }
    }

    /// A scan must start at an existing key and rise strictly, and every value must belong to its key.
    fn scan(&mut self, from: &[u8], limit: u32) -> Result<()> {
        let (data, last) = (self.data, &mut self.last_key);
        last.clear();
        let (mut seen, mut sound) = (0usize, true);
        let count = self.session.scan(from, limit as usize, |key, value| {
            let in_order = if seen == 0 { key == from } else { rises(last, key) };
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

    /// Called at the end: scans may be short only about as often as they start near the last key by chance.
    pub(super) fn finish(&self, keys: u64) -> Result<()> {
        let explained = 10.0 + 5.0 * self.scans.asked as f64 / keys.max(1) as f64;
        if self.scans.short as f64 > explained {
            return Err(Error::WrongData(format!("{} of {} scans ended early", self.scans.short, self.scans.all)));
        }
        Ok(())
    }

    /// Reads one key as part of a verification; returns whether it is there. A value that is there must be sound.
    /// `present` is `None` if it is unknown whether the key must be there.
    pub(super) fn verify(&mut self, id: u64, present: Option<bool>) -> Result<bool> {
        let mut key = std::mem::take(&mut self.key);
        self.data.key(id, &mut key);
        let verified = match present {
            Some(true) => self.get(&key).map(|()| true),
            Some(false) => self.verify_absence(&key).map(|()| false),
            None => self.verify_if_there(&key),
        };
        self.key = key;
        verified
    }

    fn verify_if_there(&mut self, key: &[u8]) -> Result<bool> {
        let data = self.data;
        match self.session.get(key, |value| data.check(key, value).is_some())? {
            Some(false) => Err(wrong("get", key, "a value that was never written")),
            found => Ok(found.is_some()),
        }
    }

    /// Scans everything, in parts; returns the number of pairs. Keys must rise strictly, and every value must belong to
    /// its key.
    pub(super) fn scan_all(&mut self) -> Result<u64> {
        const PART: usize = 1024;
        // This is before every key, because no key is shorter than four bytes.
        let (data, mut from, mut all) = (self.data, vec![0], 0);
        loop {
            let (mut last, mut sound, mut seen) = (std::mem::take(&mut from), true, 0);
            let begin = last.clone();
            let count = self.session.scan(&begin, PART, |key, value| {
                sound &= last.as_slice() <= key && (seen == 0 || last != key) && data.check(key, value).is_some();
                last.clear();
                last.extend_from_slice(key);
                seen += 1;
            })?;
            if !sound || seen != count || count > PART {
                return Err(wrong("scan", &begin, "pairs that are wrong, missing or out of order"));
            }
            all += count as u64;
            if count < PART {
                return Ok(all);
            }
            // The smallest key behind the last one.
            last.push(0);
            from = last;
        }
    }

    fn verify_absence(&mut self, key: &[u8]) -> Result<()> {
        match self.session.get(key, |_| {})? {
            None => Ok(()),
            Some(()) => Err(wrong("get", key, "a value after its delete")),
        }
    }
}

/// Makes calls that take several operations at once.
fn repeat(calls: u64, stream: &mut Stream, mut call: impl FnMut(&mut Stream) -> Result<u64>) -> Result<u64> {
    let mut ops = 0;
    for _ in 0..calls {
        if stream.remaining() == 0 {
            break;
        }
        ops += call(stream)?;
    }
    Ok(ops)
}

/// Whether `next` comes after `last`. Words are compared as words: the library's comparison loads vectors. Such a load
/// must wait until the shorter stores of a key that was just copied have left the processor's store buffer.
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
