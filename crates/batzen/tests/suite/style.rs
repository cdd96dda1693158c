//! The style of doc comments: they begin with a noun that names the item, or with a verb that tells its effect.

use std::path::{Path, PathBuf};

/// The words that begin a question instead of naming the item.
const QUESTION_WORDS: [&str; 9] =
    ["How", "Those", "What", "Whatever", "Which", "Whichever", "Who", "Whoever", "Whose"];

/// The doc comments that begin with such a word still, all of them help texts of options. The number may only
/// fall.
const OPEN: usize = 10;

/// Reads the Rust files below a directory, without build products.
fn read_files(directory: &Path, files: &mut Vec<(PathBuf, String)>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            if !path.ends_with("target") {
                read_files(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            files.push((path, text));
        }
    }
}

/// The marker of a doc comment on this line, and its text.
fn doc_text(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let is_doc = (line.starts_with("///") && !line.starts_with("////")) || line.starts_with("//!");
    is_doc.then(|| (&line[..3], line[3..].trim()))
}

/// The numbers of the lines where a paragraph of a doc comment begins with a question word. A heading ends a paragraph.
fn questions(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut before: Option<(&str, &str)> = None;
    for (number, line) in text.lines().enumerate() {
        let doc = doc_text(line);
        let is_text = |text: &str| !text.is_empty() && !text.starts_with('#');
        let goes_on =
            matches!((before, doc), (Some((one, text)), Some((other, _))) if one == other && is_text(text));
        if let Some((_, text)) = doc
            && !goes_on
            && QUESTION_WORDS
                .contains(&text.split(|letter: char| !letter.is_alphabetic()).next().unwrap_or_default())
        {
            found.push(number + 1);
        }
        before = doc;
    }
    found
}

#[test]
fn doc_comments_name_the_item() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut files = Vec::new();
    for directory in ["crates", "fuzz", "lab", "testkit"] {
        read_files(&root.join(directory), &mut files);
    }
    assert!(files.len() > 1_000, "the sources are read");
    let mut found = Vec::new();
    for (path, text) in &files {
        let name = path.strip_prefix(root).unwrap().display();
        found.extend(questions(text).into_iter().map(|line| format!("{name}:{line}")));
    }
    found.sort();
    assert!(
        found.len() <= OPEN,
        "{} doc comments begin with one of {}, and {OPEN} may; the number may only fall. Begin with a noun that names \
         the item, or with a verb (\"Limits of one batch\", not \"What a batch may take\"):\n{}",
        found.len(),
        QUESTION_WORDS.join(", "),
        found.join("\n")
    );
}

#[test]
fn only_the_start_of_a_paragraph_counts() {
    for (text, lines) in [
        ("/// What it is.\nstruct A;", vec![1]),
        ("//! The file.\n//!\n//! Whoever reads it.\n", vec![3]),
        ("    /// How long.\n    a: u8,\n    /// Which.\n    b: u8,", vec![1, 3]),
        ("/// The one\n/// which is last.\n/// What follows is text.", vec![]),
        ("/// Whether it is so. What else.\n// What it is.\n//// What it is.", vec![]),
        ("/// However it is.\n/// a\n///\n/// [`What`] it is.", vec![]),
        ("//! The file.\n/// Those of the item.", vec![2]),
        ("/// Reads it.\n///\n/// # Errors\n/// What is wrong.", vec![4]),
    ] {
        assert_eq!(questions(text), lines, "{text}");
    }
}
