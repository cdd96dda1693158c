//! The INI configuration dialect: sections, includes, path expansion, durations, amounts.
//!
//! * `[section]`, `key = value`; names are case-insensitive; a value may stand in double quotes; lines that
//!   begin with `#` or `%` are comments. A section given twice is one section, and the later of two equal
//!   options wins.
//! * `@inline@ FILE`, `@inline-matching@ GLOB` and `@inline-secret@ SECTION FILE` include other files.
//! * Paths expand `$NAME`, `${NAME}` and `${NAME:-default}` from section `[PATHS]`, then from the
//!   environment, which comes in as a function: nothing here reads the process's environment.
//!
//! ```
//! use batzen_config::Config;
//! let config = Config::parse("[exchange]\nport = 8081\n[PATHS]\nhome = /srv\n[x]\ndir = ${HOME}/keys\n").unwrap();
//! assert_eq!(config.require::<u16>("EXCHANGE", "Port").unwrap(), 8081);
//! assert_eq!(config.path("x", "dir").unwrap().to_str(), Some("/srv/keys"));
//! assert_eq!(
//!     config.require::<bool>("exchange", "port").unwrap_err().to_string(),
//!     "line 2: [EXCHANGE] PORT: expected YES or NO, found \"8081\""
//! );
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod edit;
mod error;
mod expand;
mod files;
mod parse;
mod unknown;
mod value;
mod write;

pub use error::ConfigError;
pub(crate) use expand::ExpandError;
pub use files::Loader;
pub(crate) use unknown::{UnknownOption, UnknownSection};
pub use value::{Expected, parse_duration};

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Built into the program.
    Builtin,
    /// A file of the directory of defaults.
    Default,
    /// The configuration file, or a file that it includes.
    File,
    /// A file included with `@inline-secret@`.
    Secret,
    /// [`Config::set`].
    Set,
}

/// The place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The kind of place.
    pub origin: Origin,
    /// The file, if the value is in one.
    pub(crate) file: Option<Arc<Path>>,
    /// The line, from 1; 0 if there is none.
    pub line: usize,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.origin) {
            (Some(file), _) => write!(f, "{}:{}", file.display(), self.line),
            (None, Origin::Builtin) => f.write_str("built-in default"),
            (None, Origin::Set) => f.write_str("command line"),
            (None, _) => write!(f, "line {}", self.line),
        }
    }
}

/// A value as written in the file, without quotes, not expanded.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    /// The text.
    pub text: String,
    /// Its place.
    pub source: Source,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Section {
    /// The section's name as first spelled.
    spelled: String,
    options: BTreeMap<String, Value>,
}

/// Looks up environment variables.
type Env = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A configuration: the options of all files, and the environment for expansion.
#[derive(Clone)]
pub struct Config {
    sections: BTreeMap<String, Section>,
    env: Env,
    warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { sections: BTreeMap::new(), env: Arc::new(|_| None), warnings: Vec::new() }
    }
}

impl fmt::Debug for Config {
    /// Names only: values may be passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            self.sections.iter().map(|(name, section)| (name, section.options.keys().collect::<Vec<_>>()));
        f.debug_map().entries(names).finish()
    }
}

/// The canonical spelling of a section's or option's name.
fn canonical(name: &str) -> String {
    name.trim().to_ascii_uppercase()
}

impl Config {
    /// Parses a single text without defaults or environment; includes are errors.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] with the line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        config.add_text(text)?;
        Ok(config)
    }

    /// Reads the built-in paths, the defaults of `base_dir`, then `file` (see [`Loader`]).
    ///
    /// # Errors
    /// Any [`ConfigError`] of reading.
    pub fn load(
        file: Option<&Path>,
        base_dir: Option<&Path>,
        env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        Loader::new(env).base_dir(base_dir).load(file)
    }

    /// Parses a text, which overrides existing options.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] with the line; lines before it have taken effect.
    pub fn add_text(&mut self, text: &str) -> Result<(), ConfigError> {
        let place = Source { origin: Origin::File, file: None, line: 0 };
        parse::lines(text, &place, &mut |section, line, source| self.take(section, line, source))
    }

    fn take(&mut self, section: &str, item: parse::Item<'_>, source: Source) -> Result<(), ConfigError> {
        match item {
            parse::Item::Section => {
                self.section_mut(section);
                Ok(())
            }
            parse::Item::Option(option, value) => {
                self.insert(section, option, Value { text: value.to_owned(), source });
                Ok(())
            }
            parse::Item::Include(_) => Err(ConfigError::Syntax {
                at: source,
                reason: "includes need a file to start from".to_owned(),
            }),
        }
    }

    fn section_mut(&mut self, section: &str) -> &mut Section {
        self.sections
            .entry(canonical(section))
            .or_insert_with(|| Section { spelled: section.trim().to_owned(), options: BTreeMap::new() })
    }

    fn insert(&mut self, section: &str, option: &str, value: Value) {
        self.section_mut(section).options.insert(canonical(option), value);
    }

    /// Sets an option, overriding an existing value.
    ///
    /// # Errors
    /// [`ConfigError::Unwritable`] for names or values that the dialect cannot express (line breaks, brackets
    /// …).
    pub fn set(&mut self, section: &str, option: &str, value: &str) -> Result<(), ConfigError> {
        parse::check_writable(section, option, value)?;
        let source = Source { origin: Origin::Set, file: None, line: 0 };
        self.insert(section, option, Value { text: value.to_owned(), source });
        Ok(())
    }

    /// Removes an option. Returns whether it was there.
    pub fn remove(&mut self, section: &str, option: &str) -> bool {
        self.sections
            .get_mut(&canonical(section))
            .is_some_and(|section| section.options.remove(&canonical(option)).is_some())
    }

    /// Warnings of the parser, such as about a file of secrets that cannot be read.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The value of an option as written, with its source.
    #[must_use]
    pub fn raw(&self, section: &str, option: &str) -> Option<&Value> {
        self.sections.get(&canonical(section))?.options.get(&canonical(option))
    }

    /// The text of an option as written.
    #[must_use]
    pub fn text(&self, section: &str, option: &str) -> Option<&str> {
        self.raw(section, option).map(|value| value.text.as_str())
    }

    /// Returns whether this section exists.
    #[must_use]
    pub fn has_section(&self, section: &str) -> bool {
        self.sections.contains_key(&canonical(section))
    }

    /// The names of all sections, in upper case, ascending.
    pub fn sections(&self) -> impl Iterator<Item = &str> {
        self.sections.keys().map(String::as_str)
    }

    /// The sections whose names begin with one of `prefixes` and are longer than it: the name (upper case)
    /// and the rest of the name as spelled. Ascending by name.
    pub fn sections_with<'a>(&'a self, prefixes: &'a [&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.sections.iter().filter_map(move |(name, section)| {
            let prefix = prefixes.iter().find(|prefix| {
                section.spelled.len() > prefix.len()
                    && section
                        .spelled
                        .get(..prefix.len())
                        .is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
            })?;
            Some((name.as_str(), section.spelled.get(prefix.len()..)?))
        })
    }

    /// The options of a section with their values, ascending by name.
    pub fn options(&self, section: &str) -> impl Iterator<Item = (&str, &Value)> {
        self.sections
            .get(&canonical(section))
            .into_iter()
            .flat_map(|section| section.options.iter().map(|(name, value)| (name.as_str(), value)))
    }

    /// Looks up a variable: in section `[PATHS]`, then in the environment.
    fn variable(&self, name: &str) -> Option<String> {
        self.text("PATHS", name).map(str::to_owned).or_else(|| (self.env)(name))
    }

    /// Expands `$NAME`, `${NAME}` and `${NAME:-default}`.
    ///
    /// # Errors
    /// A variable that is not set or refers to itself, or braces that are not well-formed.
    pub fn expand(&self, text: &str) -> Result<String, ExpandError> {
        expand::expand(text, &|name| self.variable(name))
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("source", &self.source).finish_non_exhaustive()
    }
}
