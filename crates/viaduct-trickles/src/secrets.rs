//! The secrets that replicas share, and their rotation.
//!
//! The file has one line for each secret: a number (0 to 255) and 64 hexadecimal digits. Empty
//! lines and lines that begin with `#` are ignored. New data are sealed with the first secret; data
//! sealed with any of them are accepted. So a rotation has two steps. First the new secret is added
//! after the others on each replica. When all replicas have the new secret, it is moved to the
//! front.
//!
//! Instead of a file, a [`SharedRotation`] may yield the current secrets. Such a rotation needs no
//! manual steps.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::rotation::Rotation;
use viaduct_sys::random::random;

/// Maximum number of secrets in a file.
const MAX_SECRETS: usize = 16;

type Secret = (u8, [u8; 32]);

/// Secrets, and where they come from.
#[derive(Clone, Debug)]
pub struct Secrets {
    secrets: Vec<Secret>,
    source: Source,
}

/// Source of secrets.
#[derive(Clone, Debug)]
enum Source {
    /// This process, which has generated one secret.
    Process,
    File(Watched),
    Rotation(SharedRotation),
}

/// Rotation that a program may replace while servers use its secrets. Clones share one rotation.
#[derive(Clone, Debug)]
pub struct SharedRotation(Arc<Mutex<Rotation>>);

impl SharedRotation {
    /// Shares `rotation`.
    pub fn new(rotation: Rotation) -> SharedRotation {
        SharedRotation(Arc::new(Mutex::new(rotation)))
    }

    /// Replaces the rotation; returns whether it differs.
    pub fn replace(&self, rotation: &Rotation) -> bool {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, rotation.clone()) != *rotation
    }

    /// Current secrets.
    fn secrets(&self) -> Vec<Secret> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).secrets(now.as_secs())
    }
}

/// A file that may change.
#[derive(Clone, Debug)]
struct Watched {
    path: PathBuf,
    read: Stamp,
    /// Stamp of a version that could not be read, perhaps because it was incomplete. The file is
    /// read again at the next check.
    failed: Option<Stamp>,
}

/// Modification time and length of a file; `None` if it does not exist.
type Stamp = Option<(SystemTime, u64)>;

impl Secrets {
    /// Reads the secrets in `file`. Without a file, generates a secret, which is lost when the
    /// process exits. Errors: the file cannot be read, or is malformed.
    pub fn new(file: Option<&Path>) -> Result<Secrets> {
        let Some(path) = file else {
            let [number, ..]: [u8; 32] = random()?;
            return Ok(Secrets { secrets: vec![(number, random()?)], source: Source::Process });
        };
        let read = stamp(path);
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read secrets: {}", path.display()))?;
        let secrets =
            parse(&text).with_context(|| format!("cannot parse secrets: {}", path.display()))?;
        let file = Watched { path: path.to_owned(), read, failed: None };
        Ok(Secrets { secrets, source: Source::File(file) })
    }

    /// Secrets that `rotation` yields, now and later.
    pub fn rotating(rotation: SharedRotation) -> Secrets {
        Secrets { secrets: rotation.secrets(), source: Source::Rotation(rotation) }
    }

    /// Reads the file again if it has changed, or takes the current secrets of the rotation;
    /// returns true if the secrets may have changed. Errors: those of [`Secrets::new`], reported
    /// once for each version of the file; the current secrets stay in use.
    pub fn reload_if_changed(&mut self) -> Result<bool> {
        let file = match &mut self.source {
            Source::Process => return Ok(false),
            Source::Rotation(rotation) => {
                let secrets = rotation.secrets();
                let has_changed = self.secrets != secrets;
                self.secrets = secrets;
                return Ok(has_changed);
            }
            Source::File(file) => file,
        };
        let found = stamp(&file.path);
        if found == file.read {
            return Ok(false);
        }
        match Secrets::new(Some(&file.path)) {
            Ok(read) => {
                *self = read;
                Ok(true)
            }
            Err(_) if file.failed == Some(found) => Ok(false),
            Err(why) => {
                file.failed = Some(found);
                Err(why)
            }
        }
    }

    /// Key ring of the secrets.
    pub fn ring(&self) -> KeyRing {
        let mut oldest_first = self.secrets.iter().rev();
        let (number, secret) = oldest_first.next().expect("there is at least one secret");
        let mut ring = KeyRing::new(*number, secret);
        oldest_first.for_each(|(number, secret)| ring.rotate(*number, secret, self.secrets.len()));
        ring
    }

    /// Numbers of the secrets, beginning with the one for new data.
    pub fn numbers(&self) -> Vec<u8> {
        self.secrets.iter().map(|(number, _)| *number).collect()
    }

    /// Random numbers: the hash key of a server's own replay window, or the seed of a client.
    /// Errors: the kernel has no random bytes.
    pub fn seeds() -> Result<[u64; 4]> {
        let random = random::<32>()?;
        let words = random.as_chunks().0;
        Ok(std::array::from_fn(|n| u64::from_ne_bytes(words[n])))
    }
}

fn stamp(path: &Path) -> Stamp {
    fs::metadata(path).and_then(|known| Ok((known.modified()?, known.len()))).ok()
}

fn parse(text: &str) -> Result<Vec<Secret>> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let secrets: Vec<Secret> = lines
        .map(|(at, line)| {
            secret(line).with_context(|| {
                format!(
                    "line {}: a number from 0 to 255 and 64 hexadecimal digits are expected",
                    at + 1
                )
            })
        })
        .collect::<Result<_>>()?;
    ensure!(!secrets.is_empty(), "there is no secret: a line like `1 00ff...` is expected");
    ensure!(
        secrets.len() <= MAX_SECRETS,
        "{} secrets: at most {MAX_SECRETS} are allowed",
        secrets.len()
    );
    let twice = |n: usize| secrets[..n].iter().any(|(number, _)| *number == secrets[n].0);
    let again = (0..secrets.len()).find(|&n| twice(n)).map(|n| secrets[n].0);
    ensure!(again.is_none(), "secret {} is listed twice", again.unwrap_or_default());
    Ok(secrets)
}

fn secret(line: &str) -> Option<Secret> {
    let (number, digits) = line.split_once(char::is_whitespace)?;
    let digits = digits.trim();
    let mut secret = [0; 32];
    // Rust's parsers accept a leading `+`.
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (place, at) in secret.iter_mut().zip((0..64).step_by(2)) {
        *place = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some((number.parse().ok()?, secret))
}

#[cfg(test)]
mod tests {
    use viaduct_proto::trickles::rotation::Root;

    use super::*;

    #[test]
    fn the_first_secret_seals_and_all_are_accepted() {
        let text = format!("# two\n7 {}\n\n 3\t{} \n", "0a".repeat(32), "FF".repeat(32));
        let secrets = Secrets { secrets: parse(&text).unwrap(), source: Source::Process };
        let ring = secrets.ring();
        assert_eq!((secrets.numbers(), ring.newest().number()), (vec![7, 3], 7));
        assert!(ring.get(3).is_some() && ring.get(4).is_none());
    }

    #[test]
    fn errors_name_the_fault() {
        let wrong = |text: &str| format!("{:#}", parse(text).unwrap_err());
        let secret = "00".repeat(32);
        assert!(wrong("").contains("there is no secret"));
        assert!(wrong(&format!("1 {secret}\n256 {secret}")).contains("line 2"));
        assert!(wrong("1 00").contains("64 hexadecimal digits"));
        assert!(wrong(&format!("1 {}", "+f".repeat(32))).contains("64 hexadecimal digits"));
        assert!(wrong(&format!("+1 {secret}")).contains("a number from 0 to 255"));
        assert!(wrong(&format!("1 {secret}\n1 {secret}")).contains("twice"));
    }

    #[test]
    fn a_replaced_rotation_takes_effect_with_the_next_check() {
        let rotation = |byte: u8| {
            let root = Root { number: 3, secret: [byte; 32], from: 0 };
            Rotation::new(3600, 2, vec![root]).unwrap()
        };
        let shared = SharedRotation::new(rotation(1));
        let mut secrets = Secrets::rotating(shared.clone());
        assert_eq!(secrets.numbers().len(), 4);
        assert_eq!(secrets.ring().newest().number(), secrets.numbers()[0]);
        assert!(shared.replace(&rotation(2)) && !shared.replace(&rotation(2)));
        let before = secrets.secrets.clone();
        assert!(secrets.reload_if_changed().unwrap());
        assert_ne!(secrets.secrets[0].1, before[0].1);
    }
}
