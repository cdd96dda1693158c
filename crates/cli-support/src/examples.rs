//! Examples in the help of commands, and the check that they are right.

use clap::Command;
use clap::error::ErrorKind;

/// The words of a command, and its examples, one a line.
pub type Examples = [(&'static [&'static str], &'static str)];

/// Adds the examples to the help of the commands.
///
/// # Panics
/// If there is no such command.
#[must_use]
pub fn add(mut command: Command, all: &Examples) -> Command {
    for (words, examples) in all {
        command = add_to(command, words, examples);
    }
    command
}

fn add_to(command: Command, words: &[&'static str], examples: &str) -> Command {
    let Some((first, rest)) = words.split_first() else {
        let lines: String = examples.lines().map(|line| format!("\n  {line}")).collect();
        let before = command.get_after_help().map(|help| format!("{help}\n\n")).unwrap_or_default();
        return command.after_help(format!("{before}Examples:{lines}"));
    };
    assert!(command.find_subcommand(first).is_some(), "there is no command {first}");
    command.mut_subcommand(first, |command| add_to(command, rest, examples))
}

/// All commands that are shown, with their words.
fn visit(command: &Command, words: &str, check: &mut impl FnMut(&str, String)) {
    let help = [command.get_after_help(), command.get_after_long_help()];
    check(words, help.into_iter().flatten().map(ToString::to_string).collect());
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        visit(command, &format!("{words} {}", command.get_name()), check);
    }
}

/// Checks, for a test of a program, that every command of `program` has examples in its help, at least `min` in all, and
/// that they parse.
///
/// # Panics
/// If one has none, or one does not parse.
pub fn check(command: impl Fn() -> Command, min: usize) {
    let program = command().get_name().to_owned();
    let start = format!("{program} ");
    let mut examples = Vec::new();
    visit(&command(), &program, &mut |words, help| {
        let lines: Vec<String> = help
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| line.starts_with(&start) || line.starts_with("for "))
            .collect();
        assert!(!lines.is_empty(), "{words} has no example:\n{help}");
        examples.extend(lines);
    });
    for line in examples.iter().filter(|line| line.starts_with(&start)) {
        let end = [" > ", " < ", " | ", " && ", "; ", "    "].iter().filter_map(|end| line.find(end)).min();
        let example = line[..end.unwrap_or(line.len())].trim();
        let words = split(example);
        // A word in capitals stands for a value, which need not be valid.
        let has_placeholder = words.iter().any(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()));
        match command().try_get_matches_from(words) {
            Err(error) if has_placeholder && error.kind() == ErrorKind::ValueValidation => {}
            Err(error) => panic!("{line}: {error}"),
            Ok(_) => {}
        }
    }
    assert!(examples.len() >= min, "{}", examples.len());
}

/// The words of a shell command with single quotes.
fn split(command: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in command.chars() {
        match letter {
            '\'' | '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
            }
            other => word.push(other),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}
