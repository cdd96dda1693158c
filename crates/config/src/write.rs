//! Writing configurations as text.

use crate::{Config, ConfigError, Origin, Source, Value, parse::quote};
use std::{
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Parts of option names whose values a dump does not show.
const SECRET_WORDS: &[&str] = &["PASSWORD", "SECRET", "TOKEN", "SALT", "PRIVATE_KEY"];

impl Value {
    /// Whether listings hide this value, because it comes from a file of secrets, or `option` has the name of
    /// a secret.
    #[must_use]
    pub fn is_secret(&self, option: &str) -> bool {
        let option = option.to_ascii_uppercase();
        self.source.origin == Origin::Secret || SECRET_WORDS.iter().any(|word| option.contains(word))
    }
}

impl Config {
    /// The whole configuration as text, names in upper case. Reading it gives the same options and values.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.text_of(|_| true)
    }

    /// The content of the main file: all options except defaults and those from files of secrets, and the
    /// directives that include these.
    #[must_use]
    pub fn to_main_text(&self) -> String {
        let mut text = self.text_of(|source| matches!(source.origin, Origin::File | Origin::Set));
        for (section, path) in &self.secrets {
            let _ = writeln!(text, "@inline-secret@ {section} {}", quote(&path.to_string_lossy()));
        }
        text
    }

    fn text_of(&self, wanted: impl Fn(&Source) -> bool) -> String {
        let mut out = String::new();
        for (name, section) in &self.sections {
            let mut options = section.options.iter().filter(|(_, value)| wanted(&value.source)).peekable();
            if options.peek().is_none() {
                continue;
            }
            let _ = writeln!(out, "[{name}]");
            for (option, value) in options {
                let _ = writeln!(out, "{option} = {}", quote(&value.text));
            }
            out.push('\n');
        }
        out
    }

    /// A listing of every option with its value and source. Values that look like secrets are hidden.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut out = String::new();
        for (name, section) in &self.sections {
            let _ = writeln!(out, "[{name}]");
            for (option, value) in &section.options {
                let text =
                    if value.is_secret(option) { "(not shown)".to_owned() } else { quote(&value.text) };
                let _ = writeln!(out, "{option} = {text}   # {}", value.source);
            }
            out.push('\n');
        }
        out
    }

    /// Writes [`Config::to_main_text`] to a file atomically: readers see either the old or the new content.
    /// An existing file keeps its permissions; a new one can be read only by its owner.
    ///
    /// # Errors
    /// [`ConfigError::File`].
    pub fn save(&self, path: &Path) -> Result<(), ConfigError> {
        let write = || -> io::Result<()> {
            // Follow links to the file itself, so that a link is kept.
            let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            let mode = fs::metadata(&target).map_or(0o600, |meta| meta.permissions().mode() & 0o7777);
            let name = target.file_name().ok_or_else(|| io::Error::other("not the name of a file"))?;
            let mut temporary = name.to_owned();
            temporary.push(format!(".new{}", std::process::id()));
            let temporary = target.with_file_name(temporary);
            let result = (|| {
                let mut file =
                    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
                file.write_all(self.to_main_text().as_bytes())?;
                file.set_permissions(fs::Permissions::from_mode(mode))?;
                file.sync_all()?;
                fs::rename(&temporary, &target)
            })();
            if result.is_err() {
                let _ = fs::remove_file(&temporary);
            }
            result
        };
        write().map_err(|error| ConfigError::File { path: path.to_owned(), error })
    }
}
