//! Options that no program reads, most likely misspelled.

use crate::{Config, Origin, Source, canonical};

/// An option that is unknown in its section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOption {
    /// Its place.
    pub source: Source,
    /// The section, in upper case.
    pub section: String,
    /// The option, in upper case.
    pub option: String,
    /// The known option with the most similar name, if any is similar enough.
    pub nearest: Option<String>,
}

impl Config {
    /// The options outside the defaults that are not in `known`, which lists pairs of a section (with `*` at
    /// its end: all sections with this prefix) and its options. Sections that are not in `known` belong to
    /// other programs and are ignored.
    #[must_use]
    pub fn unknown_options(&self, known: &[(&str, &[&str])]) -> Vec<UnknownOption> {
        let mut unknown = Vec::new();
        for (name, section) in &self.sections {
            let applies = |pattern: &str| {
                let pattern = canonical(pattern);
                pattern.strip_suffix('*').map_or(*name == pattern, |prefix| name.starts_with(prefix))
            };
            let groups: Vec<&[&str]> =
                known.iter().filter(|(pattern, _)| applies(pattern)).map(|(_, options)| *options).collect();
            if groups.is_empty() {
                continue;
            }
            for (option, value) in &section.options {
                let ours = matches!(value.source.origin, Origin::Builtin | Origin::Default);
                let mut options = groups.iter().flat_map(|group| group.iter());
                if ours || options.clone().any(|known| canonical(known) == *option) {
                    continue;
                }
                let nearest = options
                    .by_ref()
                    .map(|known| canonical(known))
                    .map(|known| (distance(&known, option), known))
                    .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
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
