//! The parser of the dialect.

use crate::{ConfigError, Source};

/// The meaning of a line.
pub(crate) enum Item<'a> {
    /// A section begins.
    Section,
    /// An option has a value.
    Option(&'a str, &'a str),
    /// A directive that includes files.
    Include(Include<'a>),
}

/// The included files and how they are included.
pub(crate) enum Include<'a> {
    File(&'a str),
    Matching(&'a str),
    Secret { section: &'a str, file: &'a str },
}

/// Receives the items: section, item, position.
pub(crate) type Sink<'s> = &'s mut dyn FnMut(&str, Item<'_>, Source) -> Result<(), ConfigError>;

/// Parses a text line by line. `place` is its source.
pub(crate) fn lines(text: &str, place: &Source, sink: Sink<'_>) -> Result<(), ConfigError> {
    let mut section: Option<&str> = None;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.split('\n').enumerate() {
        let at = || Source { line: index + 1, ..place.clone() };
        let syntax = |reason: &str| ConfigError::Syntax { at: at(), reason: reason.to_owned() };
        let line = line.trim();
        if line.contains('\0') {
            return Err(syntax("the line contains a NUL character"));
        }
        match line.chars().next() {
            None | Some('#' | '%') => {}
            Some('@') => {
                let include = include(line).ok_or_else(|| {
                    syntax("expected @inline@ FILE, @inline-matching@ GLOB or @inline-secret@ SECTION FILE")
                })?;
                sink(section.unwrap_or(""), Item::Include(include), at())?;
            }
            Some('[') => {
                let name = line[1..].strip_suffix(']').map(str::trim);
                let name = name.filter(|name| !name.is_empty() && !name.contains(['[', ']']));
                let name = name.ok_or_else(|| syntax("expected [section]"))?;
                section = Some(name);
                sink(name, Item::Section, at())?;
            }
            Some(_) => {
                let (option, value) =
                    line.split_once('=').ok_or_else(|| syntax("expected option = value"))?;
                let (option, value) = (option.trim(), value.trim());
                if option.is_empty() {
                    return Err(syntax("expected a name before the ="));
                }
                let section = section.ok_or_else(|| syntax("option before the first [section]"))?;
                let value =
                    unquote(value).ok_or_else(|| syntax("the quotes around the value do not close"))?;
                sink(section, Item::Option(option, value), at())?;
            }
        }
    }
    Ok(())
}

fn include(line: &str) -> Option<Include<'_>> {
    let (directive, rest) = line[1..].split_once('@')?;
    let rest = rest.trim();
    if rest.is_empty() {
        return None;
    }
    match directive.to_ascii_lowercase().as_str() {
        "inline" => Some(Include::File(unquote(rest)?)),
        "inline-matching" => Some(Include::Matching(unquote(rest)?)),
        "inline-secret" => {
            let (section, file) = rest.split_once(char::is_whitespace)?;
            Some(Include::Secret { section, file: unquote(file.trim())? })
        }
        _ => None,
    }
}

/// Removes quotes, if there are any; `None` if they are not closed.
fn unquote(value: &str) -> Option<&str> {
    match value.strip_prefix('"') {
        None => Some(value),
        Some(rest) => rest.strip_suffix('"'),
    }
}

/// Formats a value so that [`lines`] reads it back: in quotes if blanks or quotes at its ends would otherwise
/// be lost.
pub(crate) fn quote(value: &str) -> String {
    if value.trim() != value || value.starts_with('"') { format!("\"{value}\"") } else { value.to_owned() }
}

/// Checks that names and value survive a round trip.
pub(crate) fn check_writable(section: &str, option: &str, value: &str) -> Result<(), ConfigError> {
    let fail = |reason| {
        Err(ConfigError::Unwritable {
            section: section.trim().to_owned(),
            option: option.trim().to_owned(),
            reason,
        })
    };
    let bad = |text: &str| text.contains(['\n', '\0']);
    let (section_name, option_name) = (section.trim(), option.trim());
    if section_name.is_empty() || bad(section) || section_name.contains(['[', ']']) {
        return fail("not a name for a section");
    }
    if option_name.is_empty()
        || bad(option)
        || option_name.contains('=')
        || option_name.starts_with(['#', '%', '@', '[', '\u{feff}'])
    {
        return fail("not a name for an option");
    }
    if bad(value) {
        return fail("a value is one line");
    }
    Ok(())
}
