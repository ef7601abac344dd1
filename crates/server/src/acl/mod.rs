//! Access control lists: who may run which command on which keys, with the rules, words and file of Redis 7.
//!
//! A session holds its [`User`], which never changes, and the generation of the list at which it looked the user up. A
//! change of any user raises the generation, and every session looks its user up again before its next command. The
//! usual user, which may do everything, costs a load and two branches per command.
//!
//! # Bounds
//!
//! [`MAX_USERS`] users of [`user::MAX_RULES`] bytes of rules each; the log keeps `acllog-max-len` entries of bounded
//! size. Of a password only the hash is kept.
//!
//! # The file
//!
//! One line for each user: `user NAME RULE …`. It is loaded as a whole or not at all. It is saved beside the old one
//! and renamed, so that a crash leaves the old file or the new one.

pub mod keys;
pub mod log;
pub mod password;
pub mod selector;
pub mod user;

use log::AclLog;
use parking_lot::{Mutex, RwLock};
use password::Hash;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
pub use user::User;

/// Maximum number of users.
pub const MAX_USERS: usize = 10_000;
/// Maximum size of the ACL file, in bytes.
const MAX_FILE: u64 = 64 << 20;
/// The user of clients that have not logged in.
pub const DEFAULT: &str = "default";

type Users = BTreeMap<String, Arc<User>>;

/// All users, the ACL file and the log of refusals.
pub struct Acl {
    users: RwLock<Users>,
    generation: AtomicU64,
    next_id: AtomicU64,
    file: Option<PathBuf>,
    /// Held during a change: one at a time.
    changing: Mutex<()>,
    /// Held while the file is written, so that one thread writes at a time. Changes do not wait for the disk.
    saving: Mutex<()>,
    /// The log of refusals.
    pub log: AclLog,
}

impl Acl {
    /// Starts with the default user alone, who may do everything and has this password, if any. Only [`Acl::load`]
    /// loads `file`.
    pub fn new(requirepass: Option<&str>, file: Option<PathBuf>) -> Acl {
        let acl = Acl {
            users: RwLock::default(),
            generation: AtomicU64::new(0),
            next_id: AtomicU64::new(0),
            file,
            changing: Mutex::new(()),
            saving: Mutex::new(()),
            log: AclLog::default(),
        };
        let default = acl.default_user();
        acl.users.write().insert(default.name.clone(), Arc::new(default));
        let is_done = acl.set_default_password(requirepass);
        debug_assert!(is_done, "there are few rules yet");
        acl
    }

    fn default_user(&self) -> User {
        let mut user = User::new(DEFAULT, self.next_id.fetch_add(1, Ordering::Relaxed));
        let rules = ["on", "nopass", "allkeys", "allchannels", "allcommands"].map(|rule| rule.as_bytes().to_vec());
        let made = user.change(&rules);
        debug_assert!(made.is_ok(), "these are rules");
        user
    }

    /// Does what CONFIG SET requirepass asks for; `None`: no password is needed. Returns whether it could be done: a
    /// user whose rules are too long keeps its passwords.
    pub fn set_default_password(&self, password: Option<&str>) -> bool {
        // The hash, because a password may be longer than rules can be.
        let rule = password.map_or_else(|| "nopass".to_owned(), |password| format!("#{}", Hash::of(password.as_bytes()).to_hex()));
        let _changing = self.changing.lock();
        let mut user = User::clone(&self.default());
        let is_done = user.change(&[b"resetpass".to_vec(), rule.into_bytes()]).is_ok();
        if is_done {
            self.publish(|users| drop(users.insert(DEFAULT.to_owned(), Arc::new(user))));
        }
        is_done
    }

    fn publish(&self, change: impl FnOnce(&mut Users)) {
        let mut users = self.users.write();
        change(&mut users);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Rises with every change.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The user of this name.
    pub fn user(&self, name: &str) -> Option<Arc<User>> {
        self.users.read().get(name).cloned()
    }

    /// The user of clients that have not logged in.
    pub fn default(&self) -> Arc<User> {
        self.user(DEFAULT).unwrap_or_else(|| Arc::new(User::new(DEFAULT, u64::MAX)))
    }

    /// Whether clients need not log in.
    pub fn is_open(&self) -> bool {
        let default = self.default();
        default.enabled && default.nopass
    }

    /// Returns the user with this name and password, if it may log in. Takes as long if there is no user of the name.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let hash = Hash::of(password);
        let user = std::str::from_utf8(name).ok().and_then(|name| self.user(name))?;
        (user.accepts(&hash) && user.enabled).then_some(user)
    }

    /// Makes or changes a user.
    ///
    /// # Errors
    /// Why not, as text for the client; nothing has changed then.
    pub fn set_user(&self, name: &[u8], rules: &[Vec<u8>]) -> Result<(), String> {
        let name = user::name_of(name).map_err(|wrong| wrong.0.to_owned())?;
        let rules = user::join_parentheses(rules)
            .map_err(|rule| format!("Unmatched parenthesis in acl selector starting at '{}'.", String::from_utf8_lossy(&rule)))?;
        let _changing = self.changing.lock();
        let known = self.user(name);
        if known.is_none() && self.users.read().len() >= MAX_USERS {
            return Err(format!("There are {MAX_USERS} users already; delete some"));
        }
        let mut user = known.map_or_else(|| User::new(name, self.next_id.fetch_add(1, Ordering::Relaxed)), |user| User::clone(&user));
        user.change(&rules).map_err(|(rule, wrong)| wrong_rule(&rule, wrong))?;
        self.publish(|users| drop(users.insert(name.to_owned(), Arc::new(user))));
        Ok(())
    }

    /// Removes a user; returns whether it existed. The default user stays.
    pub fn delete(&self, name: &str) -> bool {
        let _changing = self.changing.lock();
        let mut found = false;
        if name != DEFAULT {
            self.publish(|users| found = users.remove(name).is_some());
        }
        found
    }

    /// All users, by name.
    pub fn list(&self) -> Vec<Arc<User>> {
        self.users.read().values().cloned().collect()
    }

    /// The path of the ACL file.
    ///
    /// # Errors
    /// There is no ACL file.
    pub fn file(&self) -> Result<&Path, String> {
        self.file.as_deref().ok_or_else(|| "there is no ACL file: start the server with --aclfile FILE".to_owned())
    }

    /// Replaces all users by those of the file. If the default user is not in the file, it stays as it is.
    ///
    /// # Errors
    /// What is wrong, and in which line; nothing has changed then.
    pub fn load(&self) -> Result<(), String> {
        let path = self.file()?;
        let problem = |error: std::io::Error| format!("reading the ACL file {}: {error}", path.display());
        let size = std::fs::metadata(path).map_err(problem)?.len();
        if size > MAX_FILE {
            return Err(format!("the ACL file {} has {size} bytes; {MAX_FILE} are possible", path.display()));
        }
        let text = std::fs::read(path).map_err(problem)?;
        let _changing = self.changing.lock();
        let mut users = Users::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            if let Some(user) = self.read_line(line).map_err(|why| format!("{}:{}: {why}", path.display(), number + 1))? {
                if users.contains_key(&user.name) {
                    return Err(format!("{}:{}: user '{}' is there twice", path.display(), number + 1, user.name));
                }
                users.insert(user.name.clone(), Arc::new(user));
            }
        }
        if users.len() > MAX_USERS {
            return Err(format!("{} has {} users; {MAX_USERS} are possible", path.display(), users.len()));
        }
        self.publish(|known| {
            let default = known.remove(DEFAULT);
            *known = users;
            if let Some(default) = default {
                known.entry(DEFAULT.to_owned()).or_insert(default);
            }
        });
        Ok(())
    }

    /// Parses the user of one line; none in an empty line or a comment.
    fn read_line(&self, line: &[u8]) -> Result<Option<User>, String> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(<[u8]>::to_vec);
        let Some(first) = words.next().filter(|word| !word.starts_with(b"#")) else { return Ok(None) };
        if first != b"user" {
            return Err("a line begins with user NAME".to_owned());
        }
        let name = words.next().ok_or("a line begins with user NAME")?;
        let name = user::name_of(&name).map_err(|wrong| wrong.0.to_owned())?;
        let rules = user::join_parentheses(&words.collect::<Vec<_>>()).map_err(|_| "a parenthesis is not closed".to_owned())?;
        // Clients of an existing user stay logged in, with the new rules.
        let id = self.user(name).map_or_else(|| self.next_id.fetch_add(1, Ordering::Relaxed), |user| user.id);
        let mut user = User::new(name, id);
        user.change(&rules).map_err(|(rule, wrong)| {
            // Clear-text passwords must not get into logs.
            let shown =
                if rule.starts_with(b">") || rule.starts_with(b"<") { "(a password)".into() } else { String::from_utf8_lossy(&rule) };
            format!("'{shown}': {}", wrong.0)
        })?;
        Ok(Some(user))
    }

    /// Writes all users to the file, replacing the old one once everything is on disk. Only the owner may read it.
    /// Waits for syncs, so it is not for a serving thread.
    ///
    /// # Errors
    /// Why it failed; the file is as it was.
    pub fn save(&self) -> Result<(), String> {
        let path = self.file()?;
        let _saving = self.saving.lock();
        let mut text = Vec::new();
        for user in self.list() {
            text.extend_from_slice(format!("user {} ", user.name).as_bytes());
            text.extend_from_slice(&user.describe());
            text.push(b'\n');
        }
        let beside = beside(path);
        let written = write_durably(&beside, &text).and_then(|()| std::fs::rename(&beside, path)).and_then(|()| sync_parent(path));
        written.map_err(|error| {
            // It may not exist at all.
            let _ = std::fs::remove_file(&beside);
            format!("writing the ACL file {}: {error}", path.display())
        })
    }
}

/// The path at which the file is written before it is renamed.
fn beside(path: &Path) -> PathBuf {
    path.with_extension(format!("tmp-{}", std::process::id()))
}

fn write_durably(path: &Path, text: &[u8]) -> std::io::Result<()> {
    // An existing file would keep its access rights when opened, whether a killed run or somebody else has left it.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(parent)?.sync_all()
}

fn wrong_rule(rule: &[u8], wrong: selector::Wrong) -> String {
    let shown = crate::commands::failure::shown(rule);
    format!("Error in ACL SETUSER modifier '{shown}': {}", wrong.0)
}

#[cfg(test)]
mod tests;
