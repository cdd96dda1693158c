//! Configuration files and their includes.

use crate::{
    Config, ConfigError, Env, Origin, Source, Value, canonical,
    parse::{self, Include, Item},
};
use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The depth limit of includes.
const MAX_DEPTH: usize = 32;
/// The largest number of files.
const MAX_FILES: usize = 1024;
/// The largest file, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Default paths: below the XDG directories, and the runtime directory below the temporary one.
const BUILTIN: &str = "[PATHS]
TALER_HOME = ${TALER_TEST_HOME:-${HOME:-${USERPROFILE:-/}}}
TALER_DATA_HOME = ${TALER_TEST_HOME:-${XDG_DATA_HOME:-${TALER_HOME}/.local/share}}/taler
TALER_CONFIG_HOME = ${TALER_TEST_HOME:-${XDG_CONFIG_HOME:-${TALER_HOME}/.config}}/taler
TALER_CACHE_HOME = ${TALER_TEST_HOME:-${XDG_CACHE_HOME:-${TALER_HOME}/.cache}}/taler
TALER_RUNTIME_DIR = ${TMPDIR:-${TMP:-/tmp}}/taler-system-runtime
";

/// Reads configurations from files.
pub struct Loader {
    env: Env,
    base_dir: Option<PathBuf>,
    builtin: String,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").field("base_dir", &self.base_dir).finish_non_exhaustive()
    }
}

impl Loader {
    /// A loader that asks `env` for environment variables (programs pass `|name| std::env::var(name).ok()`).
    #[must_use]
    pub fn new(env: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { env: Arc::new(env), base_dir: None, builtin: BUILTIN.to_owned() }
    }

    /// The directory whose `*.conf` files are the defaults. A missing directory has none.
    #[must_use]
    pub fn base_dir(mut self, base_dir: Option<&Path>) -> Self {
        self.base_dir = base_dir.map(Path::to_owned);
        self
    }

    /// Adds built-in defaults (as configuration text), below those of the directory.
    #[must_use]
    pub fn builtin(mut self, text: &str) -> Self {
        self.builtin.push_str(text);
        self.builtin.push('\n');
        self
    }

    /// Reads built-in defaults, the directory of defaults, then `file`.
    ///
    /// # Errors
    /// A file that cannot be read, a line that is not well-formed, includes that go too deep.
    pub fn load(&self, file: Option<&Path>) -> Result<Config, ConfigError> {
        let config = Config { env: Arc::clone(&self.env), ..Config::default() };
        let mut run = Run { config, files_left: MAX_FILES, origin: Origin::Builtin };
        let place = Source { origin: Origin::Builtin, file: None, line: 0 };
        parse::lines(&self.builtin, &place, &mut |section, item, mut source| {
            // Line numbers in built-in text mean nothing to users.
            source.line = 0;
            run.config.take(section, item, source)
        })?;
        if let Some(dir) = &self.base_dir {
            run.origin = Origin::Default;
            for path in matching(&dir.join("*.conf"))? {
                run.file(&path, 0, None)?;
            }
        }
        if let Some(file) = file {
            run.origin = Origin::File;
            run.file(file, 0, None)?;
        }
        Ok(run.config)
    }
}

struct Run {
    config: Config,
    files_left: usize,
    origin: Origin,
}

impl Run {
    /// Reads a file; with `only`, reads just that section.
    fn file(&mut self, path: &Path, depth: usize, only: Option<&str>) -> Result<(), ConfigError> {
        let fail = |error| ConfigError::File { path: path.to_owned(), error };
        self.files_left = self.files_left.checked_sub(1).ok_or_else(|| {
            fail(std::io::Error::other(format!("more than {MAX_FILES} files are included")))
        })?;
        let text = read(path).map_err(fail)?;
        let origin = if only.is_some() { Origin::Secret } else { self.origin };
        let place = Source { origin, file: Some(Arc::from(path)), line: 0 };
        let only = only.map(canonical);
        parse::lines(&text, &place, &mut |section, item, source| match (item, &only) {
            (Item::Option(option, text), Some(only)) => {
                if canonical(section) == *only {
                    self.config.insert(section, option, Value { text: text.to_owned(), source });
                } else {
                    let warning = format!(
                        "{source}: only section [{only}] is read from this file, the rest is ignored"
                    );
                    self.config.warnings.push(warning);
                }
                Ok(())
            }
            (Item::Section, Some(_)) => Ok(()),
            (Item::Include(_), Some(_)) => Err(ConfigError::Syntax {
                at: source,
                reason: "a file of secrets cannot include others".to_owned(),
            }),
            (Item::Include(include), None) => self.include(&include, path, depth, source),
            (item, None) => self.config.take(section, item, source),
        })
    }

    fn include(
        &mut self,
        include: &Include<'_>,
        from: &Path,
        depth: usize,
        at: Source,
    ) -> Result<(), ConfigError> {
        if depth >= MAX_DEPTH {
            return Err(ConfigError::Syntax {
                at,
                reason: format!("files include files more than {MAX_DEPTH} deep"),
            });
        }
        let resolve = |config: &Config, name: &str| match config.expand(name) {
            Ok(name) => Ok(from.parent().unwrap_or(Path::new("")).join(name)),
            Err(reason) => Err(ConfigError::Syntax {
                at: at.clone(),
                reason: format!("expected a path, found {reason}"),
            }),
        };
        match include {
            Include::File(name) => {
                let path = resolve(&self.config, name)?;
                self.file(&path, depth + 1, None).map_err(|error| match error {
                    ConfigError::File { path: failed, error } if failed == path => ConfigError::Syntax {
                        at,
                        reason: format!("cannot include {}: {error}", path.display()),
                    },
                    other => other,
                })
            }
            Include::Matching(pattern) => {
                let pattern = resolve(&self.config, pattern)?;
                for path in matching(&pattern)? {
                    self.file(&path, depth + 1, None)?;
                }
                Ok(())
            }
            Include::Secret { section, file } => {
                let path = resolve(&self.config, file)?;
                match self.file(&path, depth + 1, Some(section)) {
                    // Other programs with the same configuration may not be allowed to read the secrets, and
                    // do not need them.
                    Err(ConfigError::File { path, error }) => {
                        let path = path.display();
                        self.config
                            .warnings
                            .push(format!("{at}: section [{section}] is not read from {path}: {error}"));
                        Ok(())
                    }
                    other => other,
                }
            }
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other(format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    String::from_utf8(text).map_err(|_| std::io::Error::other("not UTF-8 text"))
}

/// The files that match a pattern, in order of their names. `*` and `?` stand for characters within one
/// component.
fn matching(pattern: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        let text = component.as_os_str().to_string_lossy();
        if !text.contains(['*', '?']) {
            for path in &mut found {
                path.push(component);
            }
            continue;
        }
        let mut next = Vec::new();
        for dir in &found {
            let listed = if dir.as_os_str().is_empty() { Path::new(".") } else { dir.as_path() };
            let entries = match std::fs::read_dir(listed) {
                Ok(entries) => entries,
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                    ) =>
                {
                    continue;
                }
                Err(error) => return Err(ConfigError::File { path: listed.to_owned(), error }),
            };
            for entry in entries {
                let entry = entry.map_err(|error| ConfigError::File { path: listed.to_owned(), error })?;
                let name = entry.file_name();
                let name_text = name.to_string_lossy();
                // Hidden files are skipped, as in shells.
                if matches_glob(&text, &name_text) && (!name_text.starts_with('.') || text.starts_with('.')) {
                    next.push(dir.join(&name));
                }
            }
        }
        found = next;
    }
    found.retain(|path| path.is_file());
    found.sort();
    Ok(found)
}

/// Returns whether `name` matches `pattern`, where `*` is any characters and `?` is one.
fn matches_glob(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            // Let the last star match one more character.
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches_glob;

    #[test]
    fn globs() {
        for (pattern, name, want) in [
            ("*.conf", "a.conf", true),
            ("*.conf", ".conf", true),
            ("*.conf", "a.conf~", false),
            ("a?c*e", "abcde", true),
            ("a?c*e", "acde", false),
            ("**", "", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbxx", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches_glob(pattern, name), want, "{pattern} {name}");
        }
    }
}
