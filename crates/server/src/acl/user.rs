//! A user: how it authenticates, and what it may do. A user never changes once others know it: a change makes a new
//! one.

use super::keys::{Access, accesses};
use super::password::Hash;
use super::selector::{Denied, SYNTAX, Selector, Wrong};
use crate::commands::table::Numbered;
use hither_resp::Args;

/// Maximum size of a user's rules, in bytes.
pub const MAX_RULES: usize = 64 << 10;
/// Maximum size of a user's name, in bytes.
const MAX_NAME: usize = 256;

const NO_SUCH_PASSWORD: Wrong = Wrong("The password you are trying to remove from the user does not exist");
const BAD_HASH: Wrong = Wrong("The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters");
const TOO_LONG: Wrong = Wrong("A user has up to 64 KiB of rules");

/// A user: name, passwords and rights.
#[derive(Clone)]
pub struct User {
    /// The name.
    pub name: String,
    /// Distinguishes users that have had the same name.
    pub id: u64,
    /// Whether it may log in.
    pub enabled: bool,
    /// Whether any password is accepted.
    pub nopass: bool,
    /// Whether it may do everything, so that nothing needs to be checked.
    pub unrestricted: bool,
    passwords: Vec<Hash>,
    root: Selector,
    selectors: Vec<Selector>,
}

impl User {
    /// Returns a user that may do nothing.
    pub fn new(name: &str, id: u64) -> User {
        let (passwords, selectors) = (Vec::new(), Vec::new());
        User {
            name: name.to_owned(),
            id,
            enabled: false,
            nopass: false,
            unrestricted: false,
            passwords,
            root: Selector::default(),
            selectors,
        }
    }

    /// Changes the user by rules, in order.
    ///
    /// # Errors
    /// The first invalid rule, shortened, and why; the caller must then drop the user.
    pub fn change(&mut self, rules: &[Vec<u8>]) -> Result<(), (Vec<u8>, Wrong)> {
        let mut size = self.size();
        for rule in rules {
            size += 1 + match rule.first() {
                // The password becomes its hash, whatever its length.
                Some(b'>') => rule.len().max(2 * size_of::<Hash>() + 1),
                // Every description contains two rules.
                Some(b'(') => rule.len() + 20,
                _ => rule.len(),
            };
            let outcome = if size > 2 * MAX_RULES { Err(TOO_LONG) } else { self.apply(rule) };
            outcome.map_err(|wrong| (rule[..rule.len().min(256)].to_vec(), wrong))?;
        }
        if self.size() > MAX_RULES {
            return Err((b"...".to_vec(), TOO_LONG));
        }
        self.unrestricted = self.root.is_unrestricted();
        Ok(())
    }

    fn apply(&mut self, rule: &[u8]) -> Result<(), Wrong> {
        match rule.to_ascii_lowercase().as_slice() {
            b"on" => self.enabled = true,
            b"off" => self.enabled = false,
            // Payloads of RESTORE are always checked.
            b"sanitize-payload" | b"skip-sanitize-payload" => {}
            b"nopass" => (self.nopass, self.passwords) = (true, Vec::new()),
            b"resetpass" => (self.nopass, self.passwords) = (false, Vec::new()),
            b"clearselectors" => self.selectors.clear(),
            b"reset" => *self = User::new(&self.name, self.id),
            _ => return self.apply_other(rule),
        }
        Ok(())
    }

    fn apply_other(&mut self, rule: &[u8]) -> Result<(), Wrong> {
        match rule {
            [b'>', password @ ..] => self.add_password(Hash::of(password)),
            [b'#', hash @ ..] => self.add_password(Hash::from_hex(hash).ok_or(BAD_HASH)?),
            [b'<', password @ ..] => return self.remove_password(&Hash::of(password)),
            [b'!', hash @ ..] => return self.remove_password(&Hash::from_hex(hash).ok_or(BAD_HASH)?),
            [b'(', inside @ .., b')'] => {
                let mut selector = Selector::default();
                for rule in inside.split(u8::is_ascii_whitespace).filter(|rule| !rule.is_empty()) {
                    // In a file it would end the selector.
                    if rule.ends_with(b")") {
                        return Err(SYNTAX);
                    }
                    selector.apply(rule)?;
                }
                self.selectors.push(selector);
            }
            _ => return self.root.apply(rule),
        }
        Ok(())
    }

    fn add_password(&mut self, hash: Hash) {
        if !self.passwords.iter().any(|known| known.is(&hash)) {
            self.passwords.push(hash);
        }
        self.nopass = false;
    }

    fn remove_password(&mut self, hash: &Hash) -> Result<(), Wrong> {
        let place = self.passwords.iter().position(|known| known.is(hash)).ok_or(NO_SUCH_PASSWORD)?;
        self.passwords.remove(place);
        Ok(())
    }

    /// Whether this is one of its passwords; takes the same time whichever it is.
    pub fn accepts(&self, hash: &Hash) -> bool {
        let known = self.passwords.iter().fold(false, |known, password| known | password.is(hash));
        known | self.nopass
    }

    /// Checks whether it may run a command.
    ///
    /// # Errors
    /// What of it is not allowed, by the selector that allows most.
    pub fn check(&self, found: Numbered, args: Args<'_>) -> Result<(), Denied> {
        if self.unrestricted {
            return Ok(());
        }
        let keys = accesses(found, args);
        let mut most = Denied::Command;
        for selector in std::iter::once(&self.root).chain(&self.selectors) {
            match selector.check(found, &keys, args) {
                Ok(()) => return Ok(()),
                Err(denied) => most = most.max(denied),
            }
        }
        Err(most)
    }

    /// Whether it may read a key by this command; for commands that find their keys themselves.
    pub fn may_read(&self, found: Numbered, args: Args<'_>, key: &[u8]) -> bool {
        let read = Access { read: true, write: false };
        let mut all = std::iter::once(&self.root).chain(&self.selectors);
        self.unrestricted || all.any(|selector| selector.allows_key(key, read) && selector.check(found, &[], args).is_ok())
    }

    /// Whether it may read every key by this command.
    pub fn may_read_all(&self, found: Numbered, args: Args<'_>) -> bool {
        let mut all = std::iter::once(&self.root).chain(&self.selectors);
        self.unrestricted || all.any(|selector| selector.reads_all_keys() && selector.check(found, &[], args).is_ok())
    }

    /// The flags in the reply to ACL GETUSER.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.enabled { "on" } else { "off" }];
        if self.nopass {
            flags.push("nopass");
        }
        flags
    }

    /// The hashes of its passwords.
    pub fn password_hashes(&self) -> Vec<String> {
        self.passwords.iter().map(|hash| hash.to_hex()).collect()
    }

    /// Its root rights.
    pub fn root(&self) -> &Selector {
        &self.root
    }

    /// Its further rights, in parentheses.
    pub fn selectors(&self) -> &[Selector] {
        &self.selectors
    }

    /// All its rules, as they stand in a file.
    pub fn describe(&self) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = self.flags().into_iter().map(|flag| flag.as_bytes().to_vec()).collect();
        parts.extend(self.passwords.iter().map(|hash| format!("#{}", hash.to_hex()).into_bytes()));
        parts.push(self.root.describe());
        parts.extend(self.selectors.iter().map(|selector| [b"(", selector.describe().as_slice(), b")"].concat()));
        parts.join(&b' ')
    }

    fn size(&self) -> usize {
        self.describe().len()
    }
}

/// Joins rules that belong to one pair of parentheses.
///
/// # Errors
/// The rule whose parenthesis is never closed.
pub fn join_parentheses(rules: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let mut joined: Vec<Vec<u8>> = Vec::new();
    let mut open = None;
    for rule in rules {
        match open {
            Some(_) => {
                let last: &mut Vec<u8> = joined.last_mut().ok_or_else(Vec::new)?;
                last.push(b' ');
                last.extend_from_slice(rule);
            }
            None => {
                joined.push(rule.clone());
                open = rule.starts_with(b"(").then(|| rule.clone());
            }
        }
        if rule.ends_with(b")") {
            open = None;
        }
    }
    open.map_or(Ok(joined), Err)
}

/// Checks whether a user may have this name, and returns it as text.
///
/// # Errors
/// Why not.
pub fn name_of(bytes: &[u8]) -> Result<&str, Wrong> {
    let name = std::str::from_utf8(bytes).map_err(|_| Wrong("Usernames must be UTF-8"))?;
    if name.is_empty() {
        return Err(Wrong("Usernames can't be empty"));
    }
    if name.len() > MAX_NAME {
        return Err(Wrong("Usernames have at most 256 bytes"));
    }
    let bad = |c: char| c.is_whitespace() || c.is_control();
    if name.contains(bad) { Err(Wrong("Usernames can't contain spaces or null characters")) } else { Ok(name) }
}
