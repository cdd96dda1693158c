//! Looks for throughputs and costs that no result stands behind.
//!
//! Lines of a paragraph are joined first, so that a line end hides nothing. Commands and programs in fences are left out,
//! outputs are not.

use super::others::Other;

/// Languages of fences that hold commands, programs or configuration.
const PROGRAMS: [&str; 12] =
    ["sh", "bash", "console", "ini", "toml", "json", "yaml", "sql", "rust", "python", "js", "html"];
/// In place of a figure that has a source.
const SOURCED: &str = "■";
/// Words between two ends of a range.
const RANGE: [&str; 5] = ["to", "and", "or", "-", "–"];
/// Words that are part of a number, or are one.
const LARGE: [&str; 11] = [
    "k",
    "M",
    "G",
    "hundred",
    "thousand",
    "million",
    "billion",
    "hundreds",
    "thousands",
    "millions",
    "billions",
];
const TIMES: [&str; 8] = ["µs", "μs", "us", "ns", "microsecond", "microseconds", "nanosecond", "nanoseconds"];
const LONG_TIMES: [&str; 4] = ["ms", "s", "milliseconds", "seconds"];
const BYTES: [&str; 5] = ["B", "byte", "bytes", "kB", "KB"];
/// Rates without a slash.
const RATES: [&str; 4] = ["tps", "TPS", "FTPS", "IOPS"];
/// Words of the head of a column with rates or costs.
const HEADS: [&str; 11] = [
    "/s",
    "a second",
    "per second",
    "µs",
    "μs",
    "CPU ",
    "processor time",
    "cores",
    "bytes a ",
    "bytes per ",
    "a coin",
];
/// The longest way from a number to `a second`, in words.
const REACH: usize = 6;

/// A part of a document that is read as a whole: a paragraph, an item of a list, or a row of a table.
struct Part {
    line: usize,
    text: String,
}

/// Throughputs and costs in a document that are neither marked nor listed, and listed ones that are not there, a line each.
pub(super) fn scan(name: &str, document: &str, others: &[Other]) -> impl Iterator<Item = String> {
    let others: Vec<&Other> = others.iter().filter(|other| other.document == name).collect();
    let mut is_there = vec![false; others.len()];
    let mut found = Vec::new();
    let mut head: Vec<String> = Vec::new();
    for Part { line, mut text } in parts(&without_marks(document)) {
        for (other, is_there) in others.iter().zip(&mut is_there) {
            if text.contains(other.text) {
                text = text.replace(other.text, SOURCED);
                *is_there = true;
            }
        }
        let cells: Vec<String> = if text.starts_with('|') { cells(&text) } else { Vec::new() };
        let mut figures = figures(&text);
        if cells.is_empty() {
            head.clear();
        } else if head.is_empty() {
            head.clone_from(&cells);
        } else {
            let costs =
                cells.iter().zip(&head).filter(|(_, head)| HEADS.iter().any(|word| head.contains(word)));
            figures.extend(
                costs.filter(|(cell, _)| has_digit(cell)).map(|(cell, head)| format!("{cell} ({head})")),
            );
        }
        found.extend(figures.into_iter().map(|figure| {
            format!("{line}: {figure}: neither a figure of a kept result nor in the list of others")
        }));
    }
    let absent = others.iter().zip(is_there).filter(|(_, is_there)| !is_there);
    found.extend(absent.map(|(other, _)| {
        format!("1: {:?} ({}) is in the list of others, and not here", other.text, other.reason)
    }));
    found.into_iter()
}

fn has_digit(text: &str) -> bool {
    text.contains(|letter: char| letter.is_ascii_digit())
}

/// The document without tables that are made of results, marked figures and comments. Lines stay where they are.
fn without_marks(document: &str) -> String {
    let mut text = String::with_capacity(document.len());
    let mut rest = document;
    while let Some((before, _, after)) = super::formula::next(rest) {
        text.push_str(before);
        text.push_str(SOURCED);
        rest = after;
    }
    text.push_str(rest);
    let (mut out, mut is_made) = (String::with_capacity(text.len()), false);
    for line in text.lines() {
        match line.trim().strip_prefix("<!-- bench: ") {
            Some("end -->") => is_made = false,
            Some(_) => is_made = true,
            None if !is_made => out.push_str(line),
            None => {}
        }
        out.push('\n');
    }
    while let Some((before, rest)) = out.split_once("<!--") {
        let (comment, after) = rest.split_once("-->").unwrap_or((rest, ""));
        out = format!("{before}{}{after}", "\n".repeat(comment.matches('\n').count()));
    }
    out
}

fn parts(document: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let (mut is_open, mut fence): (bool, Option<bool>) = (false, None);
    for (index, line) in document.lines().enumerate() {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(PROGRAMS.contains(&language)) };
            is_open = false;
            continue;
        }
        if fence == Some(true) {
            continue;
        }
        let begins = ["* ", "- ", "|", "#"].iter().any(|mark| line.starts_with(mark));
        if line.is_empty() {
            is_open = false;
        } else if let Some(part) = parts.last_mut().filter(|_| is_open && !begins) {
            part.text.push(' ');
            part.text.push_str(line);
        } else {
            parts.push(Part { line: index + 1, text: line.to_owned() });
            is_open = !line.starts_with('|');
        }
    }
    parts
}

fn cells(row: &str) -> Vec<String> {
    row.replace("\\|", " ").split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The words of a text, without marks of Markdown and targets of links.
fn words(text: &str) -> Vec<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("](") {
        plain.push_str(before);
        plain.push(' ');
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    let plain = plain.replace(['*', '`', '"', '“', '”'], "").replace('–', " – ").replace('|', " | ");
    let splits = |letter: char| letter.is_whitespace() || "()[]<>;=".contains(letter);
    plain.split(splits).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// A number at the beginning of a word, and what follows it.
fn leading_number(word: &str) -> Option<(f64, &str)> {
    let word = word.trim_start_matches(['~', '≈', '<', '>', '≤', '≥', '±', '×', '−', '+']);
    let end = word.find(|letter: char| !letter.is_ascii_digit() && letter != ',' && letter != '.');
    let (digits, suffix) = word.split_at(end.unwrap_or(word.len()));
    let is_number = digits.starts_with(|letter: char| letter.is_ascii_digit());
    // A day, a version or a name.
    if !is_number || suffix.starts_with(['-', '.']) {
        return None;
    }
    digits.trim_end_matches(['.', ',']).replace(',', "").parse().ok().map(|value| (value, suffix))
}

fn bare(word: &str) -> &str {
    word.trim_end_matches(['.', ',', ':', '!', '?'])
}

/// The throughputs and costs of a text that say a number.
fn figures(text: &str) -> Vec<String> {
    let words = words(text);
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let (value, suffix) = match leading_number(word) {
            Some(number) => number,
            None if LARGE[3..].contains(&bare(word)) => (f64::INFINITY, ""),
            None => continue,
        };
        if let Some(end) = end_of_figure(&words, index, value, bare(suffix)) {
            found.push(bare(&words[index..words.len().min(end + 1)].join(" ")).to_owned());
        }
    }
    found
}

/// The last word of the figure that begins with a number, if it is a throughput or a cost.
fn end_of_figure(words: &[String], index: usize, value: f64, suffix: &str) -> Option<usize> {
    if TIMES.contains(&suffix) || is_rate(suffix) {
        return Some(index);
    }
    let word = |at: usize| words.get(at).map_or("", |word| bare(word));
    let is_number = |at: usize| word(at) == SOURCED || leading_number(word(at)).is_some();
    let mut at = index + 1;
    if RANGE.contains(&word(at)) && is_number(at + 1) {
        at += 2;
    }
    while LARGE.contains(&word(at)) {
        at += 1;
    }
    let next = word(at);
    let (unit, after) = if suffix.is_empty() { (next, at + 1) } else { (suffix, at) };
    if TIMES.contains(&next) || next.ends_with("core-hours") {
        return Some(at);
    }
    let of = [word(after), word(after + 1), word(after + 2)];
    let is_processor = |word: &str| matches!(word, "CPU" | "processor" | "server");
    if LONG_TIMES.contains(&unit) && of[0] == "of" && (is_processor(of[1]) || is_processor(of[2])) {
        return Some(after + 1);
    }
    if BYTES.contains(&unit)
        && (matches!(of[0], "a" | "per") || matches!(of, ["for" | "of", "each" | "every", _]))
    {
        return Some(after + 1);
    }
    let is_many = value > 2.0;
    if is_many && (matches!(next, "core" | "cores") || (next == "busy" && word(at + 1).starts_with("core"))) {
        return Some(at);
    }
    if next == "times"
        && matches!(word(at + 1), "the" | "as" | "that" | "faster" | "slower" | "more" | "less")
    {
        return Some(at + 1);
    }
    let percent = if unit == "%" { word(after) } else { "" };
    if matches!(percent, "faster" | "slower" | "quicker") {
        return Some(after);
    }
    if value < 1.0 && next == "of" {
        let compared =
            |word: &str| ["rate", "time", "speed", "throughput", "figures", "server"].contains(&word);
        return (at + 1..at + 6).find(|&at| compared(word(at).trim_end_matches("'s")));
    }
    // The end of a sentence or cell ends the search.
    let sentence =
        (index..words.len()).find(|&at| words[at].ends_with(['.', '?', '!', '|'])).unwrap_or(words.len());
    (index + 1..=(index + REACH).min(sentence)).find_map(|at| match [word(at), word(at + 1)] {
        ["a" | "per" | "each" | "every", "second" | "sec"] => Some(at + 1),
        [rate, _] => is_rate(rate).then_some(at),
    })
}

/// Returns whether a word is a rate: `/s`, `coins/s`, `TPS`.
fn is_rate(word: &str) -> bool {
    word.ends_with("/s") || word.ends_with("/sec") || RATES.contains(&word)
}
