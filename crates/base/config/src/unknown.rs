//! Sections and options that no program reads, most likely misspelled.

use crate::{Config, Origin, Source, Value, canonical};

/// An option that is unknown in its section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOption {
    /// Its place.
    pub(crate) source: Source,
    /// The section, in upper case.
    pub(crate) section: String,
    /// The option, in upper case.
    pub(crate) option: String,
    /// The known option with the most similar name, if any is similar enough.
    pub nearest: Option<String>,
}

/// A section that no program reads and whose name is similar to one that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSection {
    /// The place of its first option.
    pub(crate) source: Source,
    /// The section, in upper case.
    pub(crate) section: String,
    /// The known section with the most similar name; `*` at its end stands for any name.
    pub(crate) nearest: String,
}

impl Config {
    /// The sections outside the defaults that are not in `known` (see [`Config::unknown_options`]) but
    /// similar to one of them. Others belong to other programs.
    #[must_use]
    pub fn unknown_sections(&self, known: &[(&str, &[&str])]) -> Vec<UnknownSection> {
        let mut unknown = Vec::new();
        for (name, section) in &self.sections {
            if known.iter().any(|(pattern, _)| matches(pattern, name)) {
                continue;
            }
            let Some(value) = section.options.values().find(|value| is_chosen(value)) else { continue };
            let nearest = known
                .iter()
                .map(|(pattern, _)| canonical(pattern))
                .map(|pattern| (pattern_distance(&pattern, name), pattern))
                .filter(|(distance, pattern)| *distance <= tolerance(pattern))
                .min();
            if let Some((_, nearest)) = nearest {
                let source = value.source.clone();
                unknown.push(UnknownSection { source, section: name.clone(), nearest });
            }
        }
        unknown
    }

    /// The options outside the defaults that are not in `known`, which lists pairs of a section (with `*` at
    /// its end: all sections with this prefix) and its options. Sections that are not in `known` belong to
    /// other programs and are ignored.
    #[must_use]
    pub fn unknown_options(&self, known: &[(&str, &[&str])]) -> Vec<UnknownOption> {
        let mut unknown = Vec::new();
        for (name, section) in &self.sections {
            let groups: Vec<&[&str]> = known
                .iter()
                .filter(|(pattern, _)| matches(pattern, name))
                .map(|(_, options)| *options)
                .collect();
            if groups.is_empty() {
                continue;
            }
            for (option, value) in &section.options {
                let mut options = groups.iter().flat_map(|group| group.iter());
                if !is_chosen(value) || options.clone().any(|known| canonical(known) == *option) {
                    continue;
                }
                let nearest = options
                    .by_ref()
                    .map(|known| canonical(known))
                    .map(|known| (distance(&known, option), known))
                    .filter(|(distance, known)| *distance <= tolerance(known))
                    .min()
                    .map(|(_, known)| known);
                unknown.push(UnknownOption {
                    source: value.source.clone(),
                    section: name.clone(),
                    option: option.clone(),
                    nearest,
                });
            }
        }
        unknown
    }
}

/// Returns whether a section's name in upper case matches a name, or a prefix with `*` at its end.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern = canonical(pattern);
    pattern.strip_suffix('*').map_or(name == pattern, |prefix| name.starts_with(prefix))
}

/// Returns whether the operator wrote the value: it is neither built in nor in the directory of defaults.
const fn is_chosen(value: &Value) -> bool {
    !matches!(value.source.origin, Origin::Builtin | Origin::Default)
}

/// The largest distance of a misspelled name from the name that was meant.
const fn tolerance(known: &str) -> usize {
    1 + known.len() / 4
}

/// The distance between a name and a pattern. Of a longer name, a prefix is compared with only as much text.
fn pattern_distance(pattern: &str, name: &str) -> usize {
    match pattern.strip_suffix('*') {
        Some(prefix) => distance(prefix, &name.chars().take(prefix.chars().count()).collect::<String>()),
        None => distance(pattern, name),
    }
}

/// The Levenshtein distance: the number of letters to change, add or remove.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
