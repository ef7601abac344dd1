//! BITFIELD: integers of 1 to 64 bits anywhere within a string.

use super::arguments::{Options, integer, is};
use super::bits::{BAD_OFFSET, bit, ensure_in_string, offset};
use super::failure::Failure;
use super::strings::{bytes_of, load};
use super::{Context, Outcome};
use crate::data::encoding::string_entry;
use hither_resp::Writer;

/// What happens to a number that does not fit.
#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// An integer type: `i8`, `u12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Width {
    signed: bool,
    bits: u32,
}

#[derive(Clone, Copy)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

struct Step {
    action: Action,
    width: Width,
    at: usize,
    overflow: Overflow,
}

const BAD_TYPE: Failure = Failure::text("ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.");

impl Width {
    fn parse(text: &[u8]) -> Result<Width, Failure> {
        let (signed, most) = match text.first() {
            Some(b'i') => (true, 64),
            Some(b'u') => (false, 63),
            _ => return Err(BAD_TYPE),
        };
        let bits = hither_resp::parse_integer(&text[1..]).filter(|bits| (1..=most).contains(bits));
        Ok(Width { signed, bits: bits.ok_or(BAD_TYPE)? as u32 })
    }

    fn least(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn greatest(self) -> i128 {
        (1 << (self.bits - u32::from(self.signed))) - 1
    }

    /// The low bits of a value, as this integer type.
    fn wrap(self, value: i128) -> i128 {
        let low = value & ((1 << self.bits) - 1);
        if low > self.greatest() { low - (1 << self.bits) } else { low }
    }

    fn read(self, bytes: &[u8], at: usize) -> i128 {
        self.wrap((at..at + self.bits as usize).fold(0, |value, at| value << 1 | i128::from(bit(bytes, at))))
    }

    fn write(self, bytes: &mut [u8], at: usize, value: i128) {
        for place in 0..self.bits as usize {
            let (byte, mask) = (&mut bytes[(at + place) / 8], 0x80 >> ((at + place) % 8));
            if value >> (self.bits as usize - 1 - place) & 1 == 1 {
                *byte |= mask;
            } else {
                *byte &= !mask;
            }
        }
    }

    /// Makes a number fit; `None` if it does not fit and the step must fail then.
    fn fit(self, value: i128, overflow: Overflow) -> Option<i128> {
        if (self.least()..=self.greatest()).contains(&value) {
            return Some(value);
        }
        match overflow {
            Overflow::Wrap => Some(self.wrap(value)),
            Overflow::Saturate => Some(value.clamp(self.least(), self.greatest())),
            Overflow::Fail => None,
        }
    }
}

/// Parses a place in bits, or `#n`: the n-th integer of this width.
fn place(text: &[u8], width: Width) -> Result<usize, Failure> {
    let bits = u64::from(width.bits);
    let Some(number) = text.strip_prefix(b"#") else { return offset(text, bits) };
    let number = hither_resp::parse_integer(number).ok_or(BAD_OFFSET)?;
    let at = number.checked_mul(i64::from(width.bits)).ok_or(BAD_OFFSET)?;
    offset(at.to_string().as_bytes(), bits)
}

fn parse(context: &Context<'_>) -> Result<Vec<Step>, Failure> {
    let mut steps = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut rest = Options::new(context.args, 2);
    while let Some(word) = rest.next() {
        if is(word, "overflow") && rest.left() >= 1 {
            overflow = match rest.value()?.to_ascii_lowercase().as_slice() {
                b"wrap" => Overflow::Wrap,
                b"sat" => Overflow::Saturate,
                b"fail" => Overflow::Fail,
                _ => return Err(Failure::text("ERR Invalid OVERFLOW type specified")),
            };
            continue;
        }
        let get = is(word, "get") && rest.left() >= 2;
        let set = is(word, "set") && rest.left() >= 3;
        let add = is(word, "incrby") && rest.left() >= 3;
        if !(get || set || add) {
            return Err(Failure::SYNTAX);
        }
        let width = Width::parse(rest.value()?)?;
        let at = place(rest.value()?, width)?;
        if !get {
            ensure_in_string(at, u64::from(width.bits))?;
        }
        let action = match (get, set) {
            (true, _) => Action::Get,
            (_, true) => Action::Set(integer(rest.value()?)?),
            _ => Action::Add(integer(rest.value()?)?),
        };
        steps.push(Step { action, width, at, overflow });
    }
    Ok(steps)
}

/// The BITFIELD command.
pub fn bitfield(context: &mut Context<'_>) -> Outcome {
    let steps = parse(context)?;
    let last = |step: &Step| step.at + step.width.bits as usize - 1;
    let Some(last) = steps.iter().filter(|step| !matches!(step.action, Action::Get)).map(last).max() else {
        return read_all(context, &steps);
    };
    let Context { txn, reply, args, .. } = context;
    let old = load(txn, &args[1])?;
    let is_new = old.is_none();
    let (mut entry, expires_at_ms) = old.map_or_else(|| (string_entry(b""), 0), |item| (item.entry, item.expires_at_ms));
    // The type's byte comes first.
    let mut changed = is_new || entry.len() < 2 + last / 8;
    entry.resize(entry.len().max(2 + last / 8), 0);
    reply.array(steps.len());
    for step in &steps {
        changed |= step.run(&mut entry[1..], reply);
    }
    if changed {
        txn.put(&args[1], entry, expires_at_ms);
    }
    Ok(())
}

/// The BITFIELD_RO command.
pub fn bitfield_ro(context: &mut Context<'_>) -> Outcome {
    let steps = parse(context)?;
    if steps.iter().any(|step| !matches!(step.action, Action::Get)) {
        return Err(Failure::text("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    read_all(context, &steps)
}

fn read_all(context: &mut Context<'_>, steps: &[Step]) -> Outcome {
    let Context { txn, reply, args, .. } = context;
    txn.view(&args[1], |found| {
        let bytes = found.map_or(Ok(&[][..]), |(entry, _)| bytes_of(entry))?;
        reply.array(steps.len());
        steps.iter().for_each(|step| reply.integer(step.width.read(bytes, step.at) as i64));
        Ok(())
    })?
}

impl Step {
    /// Runs the step; returns whether it has changed anything.
    fn run(&self, bytes: &mut [u8], reply: &mut Writer<'_>) -> bool {
        let Step { width, at, .. } = *self;
        let old = width.read(bytes, at);
        let (new, told) = match self.action {
            Action::Get => (None, Some(old)),
            Action::Set(value) => {
                // A negative number is a very large unsigned one.
                let value = if width.signed { i128::from(value) } else { i128::from(value as u64) };
                let new = width.fit(value, self.overflow);
                (new, new.map(|_| old))
            }
            Action::Add(amount) => {
                let new = width.fit(old + i128::from(amount), self.overflow);
                (new, new)
            }
        };
        if let Some(new) = new {
            width.write(bytes, at, new);
        }
        match told {
            Some(told) => reply.integer(told as i64),
            None => reply.null(),
        }
        new.is_some_and(|new| new != old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths() {
        for text in ["", "i", "i0", "i65", "u0", "u64", "x8", "I8", "i-1", "i8x"] {
            assert!(Width::parse(text.as_bytes()).is_err(), "{text}");
        }
        let width = |text: &str| Width::parse(text.as_bytes()).unwrap_or_else(|_| panic!("{text}"));
        assert_eq!((width("i64").least(), width("i64").greatest()), (i64::MIN.into(), i64::MAX.into()));
        assert_eq!((width("u63").least(), width("u63").greatest()), (0, i64::MAX.into()));
        assert_eq!((width("i1").least(), width("i1").greatest()), (-1, 0));
        assert_eq!(width("i8").wrap(200), -56);
        assert_eq!(width("u8").wrap(-1), 255);
    }

    #[test]
    fn what_does_not_fit_is_wrapped_saturated_or_refused() {
        let byte = Width { signed: true, bits: 8 };
        for (value, wrapped, saturated) in [(200, -56, 127), (-129, 127, -128), (i128::from(i64::MIN), 0, -128)] {
            assert_eq!(byte.fit(value, Overflow::Wrap), Some(wrapped), "{value}");
            assert_eq!(byte.fit(value, Overflow::Saturate), Some(saturated), "{value}");
            assert_eq!(byte.fit(value, Overflow::Fail), None, "{value}");
        }
        assert_eq!(byte.fit(-128, Overflow::Fail), Some(-128));
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_changes() {
        for bits in 1..=64 {
            for at in 0..17 {
                let width = Width { signed: true, bits };
                for value in [width.least(), -1, 0, width.greatest()] {
                    for background in [0, 0xff] {
                        let mut bytes = [background; 12];
                        width.write(&mut bytes, at, value);
                        assert_eq!(width.read(&bytes, at), value, "i{bits} at {at}");
                        let around = (0..96).filter(|place| !(at..at + bits as usize).contains(place));
                        assert!(around.into_iter().all(|place| bit(&bytes, place) == (background != 0)), "i{bits} at {at}");
                    }
                }
            }
        }
    }
}
