//! The minimal command-line parsing that the commands need. Unknown options are errors.

use crate::Failure;
use std::collections::VecDeque;

/// The arguments that were not taken yet.
pub struct Args {
    rest: VecDeque<String>,
}

impl Args {
    /// The arguments of this process.
    pub fn from_env() -> Self {
        Args { rest: std::env::args().skip(1).collect() }
    }

    /// Takes the first argument.
    pub fn command(&mut self) -> Option<String> {
        self.rest.pop_front()
    }

    /// Takes `name`; returns whether it was given.
    pub fn flag(&mut self, name: &str) -> bool {
        let before = self.rest.len();
        self.rest.retain(|arg| arg != name);
        self.rest.len() != before
    }

    /// Takes every `name VALUE` and `name=VALUE`.
    pub fn values(&mut self, name: &str) -> Result<Vec<String>, Failure> {
        let mut values = Vec::new();
        let mut kept = VecDeque::new();
        while let Some(arg) = self.rest.pop_front() {
            if arg == name {
                values.push(self.rest.pop_front().ok_or_else(|| format!("{name} needs a value"))?);
            } else if let Some(value) = arg.strip_prefix(name).and_then(|tail| tail.strip_prefix('=')) {
                values.push(value.to_owned());
            } else {
                kept.push_back(arg);
            }
        }
        self.rest = kept;
        Ok(values)
    }

    /// Takes the last `name N`, which must be a positive whole number.
    pub fn number(&mut self, name: &str) -> Result<Option<u64>, Failure> {
        let Some(text) = self.values(name)?.pop() else { return Ok(None) };
        match text.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(format!("{name} wants a positive whole number, not {text}")),
        }
    }

    /// All remaining arguments, to be passed on.
    pub fn into_rest(self) -> Vec<String> {
        self.rest.into()
    }

    /// Fails if any argument remains.
    pub fn finish(self) -> Result<(), Failure> {
        match self.rest.front() {
            None => Ok(()),
            Some(arg) => Err(format!("unknown argument {arg}; see cargo xtask help")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args { rest: line.split_whitespace().map(str::to_owned).collect() }
    }

    #[test]
    fn takes_what_is_asked_for_and_refuses_the_rest() {
        let mut given = args("--only a --list --only=b --minutes 7");
        assert!(given.flag("--list"));
        assert!(!given.flag("--list"));
        assert_eq!(given.values("--only").unwrap(), ["a", "b"]);
        assert_eq!(given.number("--minutes").unwrap(), Some(7));
        assert!(given.finish().is_ok());
        assert!(args("--what").finish().is_err());
        assert!(args("--minutes 0").number("--minutes").is_err());
        assert!(args("--only").values("--only").is_err());
    }
}
