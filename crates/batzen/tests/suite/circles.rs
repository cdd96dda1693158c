//! Import circles inside crates: files of different folders may not import each other, directly or through others.
//!
//! A module and its own children belong together: the module names them, and they may use what it defines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The most re-exports that a name passes through.
const HOPS_MAX: usize = 16;

/// The source of a crate: a name for its root file, and the text of each file below its `src/`.
type Sources = BTreeMap<PathBuf, String>;

/// A path as written, without generics: `["super", "books", "Books"]`.
type Segments = Vec<String>;

#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Children, items and imported names; the last with the path that they stand for.
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    imports: BTreeMap<String, Segments>,
    globs: Vec<Segments>,
    /// Imports with `pub`: a module that hands a name on does not use it.
    handed_on: BTreeSet<String>,
    globs_used: Vec<Segments>,
    words: BTreeSet<String>,
    /// Paths in the code outside `use` declarations.
    paths: BTreeSet<Segments>,
}

/// The modules of one crate by their paths from its root, which is `[]`.
struct Crate {
    modules: BTreeMap<Segments, Module>,
}

/// Words and punctuation of a source text, without comments, strings, character literals and lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(b"//") {
            at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            at += after_block_comment(rest);
        } else if rest[0] == b'"' {
            at += after_string(rest);
        } else if let Some(length) = raw_string(rest) {
            at += length;
        } else if rest[0] == b'\'' {
            at += after_quote(rest);
        } else if is_word(rest[0]) {
            let length = rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len());
            tokens.push(&text[at..at + length]);
            at += length;
        } else {
            let length = if rest.starts_with(b"::") { 2 } else { 1 };
            if !rest[0].is_ascii_whitespace() {
                tokens.push(&text[at..at + length]);
            }
            at += length;
        }
    }
    tokens
}

/// The length of a block comment, which may contain others.
fn after_block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// The length of a string literal.
fn after_string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// The length of a raw string literal, if `rest` begins with one.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let prefix = rest.iter().position(|byte| !matches!(byte, b'b' | b'c' | b'r'))?;
    if !rest[..prefix].ends_with(b"r") {
        return None;
    }
    let hashes = rest[prefix..].iter().position(|byte| *byte != b'#')?;
    let body = prefix + hashes + 1;
    if rest.get(body - 1) != Some(&b'"') {
        return None;
    }
    let end: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let length = rest[body..].windows(end.len()).position(|window| window == end)?;
    Some(body + length + end.len())
}

/// The length of a character literal, or of the quote of a lifetime.
fn after_quote(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return 3 + rest[3..].iter().position(|byte| *byte == b'\'').map_or(0, |at| at + 1);
    }
    // A character has at most four bytes.
    let close = (2..=5).find(|at| rest.get(*at) == Some(&b'\''));
    match close {
        Some(at) if std::str::from_utf8(&rest[1..at]).is_ok_and(|text| text.chars().count() == 1) => at + 1,
        _ => 1,
    }
}

/// The index after the bracket that closes the one at `open`.
fn after_group(tokens: &[&str], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The index after an item: after its semicolon or its body.
fn after_item(tokens: &[&str], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at] {
            ";" => return at + 1,
            "{" => return after_group(tokens, at),
            "(" | "[" => at = after_group(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// A text that begins like a name.
fn is_name(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

impl Module {
    /// The paths that the module imports for its own code.
    fn used(&self) -> impl Iterator<Item = &Segments> {
        let used = |name: &String| !self.handed_on.contains(name) || self.words.contains(name);
        self.imports.iter().filter(move |(name, _)| used(name)).map(|(_, path)| path)
    }
}

/// The names that a `use` declaration brings into scope.
#[derive(Default)]
struct Imports {
    names: BTreeMap<String, Segments>,
    globs: Vec<Segments>,
}

impl Imports {
    /// Reads a `use` tree below `prefix`; returns the index of the token that ends it.
    fn read(&mut self, tokens: &[&str], mut at: usize, prefix: &mut Segments) -> usize {
        let base = prefix.len();
        loop {
            match tokens.get(at).copied() {
                Some("::") => at += 1,
                Some("{") => {
                    at += 1;
                    while tokens.get(at).is_some_and(|token| *token != "}") {
                        at = self.read(tokens, at, prefix);
                        at += usize::from(tokens.get(at) == Some(&","));
                    }
                    prefix.truncate(base);
                    return at + 1;
                }
                Some("*") => {
                    self.globs.push(prefix.clone());
                    prefix.truncate(base);
                    return at + 1;
                }
                Some(name) if is_name(name) => {
                    if name != "self" || prefix.is_empty() {
                        prefix.push(name.to_owned());
                    }
                    at += 1;
                    if tokens.get(at) != Some(&"::") {
                        let mut shown = prefix.last().cloned().unwrap_or_default();
                        if tokens.get(at) == Some(&"as") {
                            shown = tokens[at + 1].to_owned();
                            at += 2;
                        }
                        self.names.insert(shown, prefix.clone());
                        prefix.truncate(base);
                        return at;
                    }
                }
                _ => {
                    prefix.truncate(base);
                    return at;
                }
            }
        }
    }
}

impl Crate {
    /// Reads the modules that `root` declares.
    fn read(sources: &Sources, root: &Path) -> Self {
        let mut this = Self { modules: BTreeMap::new() };
        this.read_file(sources, root, Vec::new(), root.parent().unwrap());
        this
    }

    /// Reads the file of a module, whose children are in `directory`.
    fn read_file(&mut self, sources: &Sources, file: &Path, module: Segments, directory: &Path) {
        let Some(text) = sources.get(file) else { return };
        self.read_module(sources, file, module, directory, &tokens(text));
    }

    fn read_module(
        &mut self,
        sources: &Sources,
        file: &Path,
        name: Segments,
        directory: &Path,
        tokens: &[&str],
    ) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at] {
                "#" if tokens[at + 1..].starts_with(&["[", "cfg", "(", "test", ")", "]"]) => {
                    at = after_attributes(tokens, at);
                    at = after_item(tokens, at);
                }
                "use" => {
                    let public = at > 0 && matches!(tokens[at - 1], "pub" | ")");
                    let mut imports = Imports::default();
                    at = imports.read(tokens, at + 1, &mut Vec::new()) + 1;
                    if public {
                        module.handed_on.extend(imports.names.keys().cloned());
                    } else {
                        module.globs_used.extend(imports.globs.iter().cloned());
                    }
                    module.imports.extend(imports.names);
                    module.globs.extend(imports.globs);
                }
                "mod" if tokens.get(at + 2) == Some(&";") => {
                    let child = tokens[at + 1];
                    module.children.insert(child.to_owned());
                    let folder = directory.join(child);
                    let beside = directory.join(format!("{child}.rs"));
                    let file = if sources.contains_key(&beside) { beside } else { folder.join("mod.rs") };
                    self.read_file(sources, &file, [&name[..], &[child.to_owned()]].concat(), &folder);
                    at += 3;
                }
                "mod" if tokens.get(at + 2) == Some(&"{") => {
                    let child = tokens[at + 1];
                    module.children.insert(child.to_owned());
                    let end = after_group(tokens, at + 2);
                    let body = &tokens[at + 3..end - 1];
                    let path = [&name[..], &[child.to_owned()]].concat();
                    self.read_module(sources, file, path, &directory.join(child), body);
                    at = end;
                }
                "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" | "fn" => {
                    if tokens.get(at + 1).is_some_and(|name| is_name(name)) {
                        module.items.insert(tokens[at + 1].to_owned());
                    }
                    at += 1;
                }
                first if is_name(first) && tokens.get(at + 1) == Some(&"::") => {
                    module.words.insert(first.to_owned());
                    let mut path = vec![first.to_owned()];
                    at += 1;
                    while tokens.get(at) == Some(&"::")
                        && tokens.get(at + 1).is_some_and(|next| is_name(next))
                    {
                        path.push(tokens[at + 1].to_owned());
                        at += 2;
                    }
                    module.paths.insert(path);
                }
                word => {
                    if is_name(word) {
                        module.words.insert(word.to_owned());
                    }
                    at += 1;
                }
            }
        }
        self.modules.insert(name, module);
    }

    /// The file that defines what `path` means in `module`, if it is in this crate.
    fn resolve(&self, module: &Segments, path: &[String], hops: usize) -> Option<&Path> {
        let (mut at, rest) = self.start(module, path, hops)?;
        for (index, name) in rest.iter().enumerate() {
            let here = self.modules.get(&at)?;
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            if hops < HOPS_MAX && !here.items.contains(name) {
                if let Some(import) = here.imports.get(name) {
                    let path = [&import[..], &rest[index + 1..]].concat();
                    return self.resolve(&at, &path, hops + 1);
                }
                for glob in &here.globs {
                    let path = [&glob[..], std::slice::from_ref(name)].concat();
                    if let Some(found) = self.resolve_item(&at, &path, hops + 1) {
                        return Some(found);
                    }
                }
            }
            break;
        }
        self.modules.get(&at).map(|module| module.file.as_path())
    }

    /// Like `resolve`, but only if the definition itself is found.
    fn resolve_item(&self, module: &Segments, path: &[String], hops: usize) -> Option<&Path> {
        let file = self.resolve(module, path, hops)?;
        let name = path.last()?;
        let defines = |module: &Module| module.file == file && module.items.contains(name);
        self.modules.values().any(defines).then_some(file)
    }

    /// The module where a path begins, and the segments after it.
    fn start<'a>(
        &self,
        module: &Segments,
        path: &'a [String],
        hops: usize,
    ) -> Option<(Segments, &'a [String])> {
        let (first, mut rest) = path.split_first()?;
        match first.as_str() {
            "crate" => return Some((Vec::new(), rest)),
            "self" => return Some((module.clone(), rest)),
            "super" => {
                let mut at = module.clone();
                at.pop();
                while let Some(("super", after)) =
                    rest.split_first().map(|(first, rest)| (first.as_str(), rest))
                {
                    at.pop();
                    rest = after;
                }
                return Some((at, rest));
            }
            _ => {}
        }
        let here = self.modules.get(module)?;
        let known = here.children.contains(first) || (hops < HOPS_MAX && here.imports.contains_key(first));
        // A name imported from elsewhere, as in `use serde::de; de::Error`, does not lead into this crate.
        if !known || here.imports.get(first).is_some_and(|import| import.first() == Some(first)) {
            return None;
        }
        Some((module.clone(), path))
    }

    /// The files that each file imports from.
    fn arrows(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut arrows: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (name, module) in &self.modules {
            let to = arrows.entry(&module.file).or_default();
            let named = module.used().chain(&module.globs_used).chain(&module.paths);
            to.extend(
                named.filter_map(|path| self.resolve(name, path, 0)).filter(|file| *file != module.file),
            );
        }
        arrows
    }
}

/// The index after one or more attributes.
fn after_attributes(tokens: &[&str], mut at: usize) -> usize {
    while tokens.get(at) == Some(&"#") && tokens.get(at + 1) == Some(&"[") {
        at = after_group(tokens, at + 1);
    }
    at
}

/// The arrows between a module and its own children that are left out. Each reading must be without circles:
/// one alone would hide those through the other kind of arrow.
#[derive(Clone, Copy)]
enum Reading {
    WithoutParentToChild,
    WithoutChildToParent,
}

/// The folder that has the children of a file's module.
fn folder(file: &Path) -> PathBuf {
    match file.file_name().and_then(|name| name.to_str()) {
        Some("mod.rs" | "lib.rs" | "main.rs") => file.parent().unwrap().to_owned(),
        _ => file.with_extension(""),
    }
}

/// The circles of a crate with files of different folders.
fn circles(sources: &Sources, root: &Path) -> BTreeSet<BTreeSet<PathBuf>> {
    let module_tree = Crate::read(sources, root);
    let arrows = module_tree.arrows();
    let mut circles = BTreeSet::new();
    for reading in [Reading::WithoutParentToChild, Reading::WithoutChildToParent] {
        let mut arrows = arrows.clone();
        for (from, to) in &mut arrows {
            to.retain(|to| match reading {
                Reading::WithoutParentToChild => !to.starts_with(folder(from)),
                Reading::WithoutChildToParent => !from.starts_with(folder(to)),
            });
        }
        let reached: BTreeMap<&Path, BTreeSet<&Path>> =
            arrows.keys().map(|from| (*from, reach(&arrows, from))).collect();
        for (from, to) in reached.iter().filter(|(from, to)| to.contains(*from)) {
            let circle: BTreeSet<PathBuf> = to
                .iter()
                .filter(|other| reached[*other].contains(from))
                .map(|file| file.to_path_buf())
                .collect();
            let folders: BTreeSet<&Path> = circle.iter().map(|file| file.parent().unwrap()).collect();
            if folders.len() > 1 {
                circles.insert(circle);
            }
        }
    }
    circles
}

/// All files that `from` imports from, directly or through others.
fn reach<'a>(arrows: &BTreeMap<&'a Path, BTreeSet<&'a Path>>, from: &Path) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<&Path> = vec![from];
    while let Some(file) = waiting.pop() {
        for next in arrows.get(file).into_iter().flatten() {
            if reached.insert(*next) {
                waiting.push(next);
            }
        }
    }
    reached
}

/// Reads the files below a directory.
fn read_files(directory: &Path, sources: &mut Sources) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            read_files(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            sources.insert(path, text);
        }
    }
}

#[test]
fn files_of_different_folders_do_not_import_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    for directory in super::architecture::crate_directories() {
        let src = directory.join("src");
        let mut sources = Sources::new();
        read_files(&src, &mut sources);
        let is_root = |file: &&PathBuf| {
            let name = file.strip_prefix(&src).unwrap();
            let beside = name.parent() == Some(Path::new("bin"));
            beside || name == Path::new("lib.rs") || name == Path::new("main.rs")
        };
        let found: Vec<_> = sources.keys().filter(is_root).flat_map(|root| circles(&sources, root)).collect();
        let files: BTreeSet<&Path> =
            found.iter().flatten().map(|file| file.strip_prefix(&src).unwrap()).collect();
        let name = directory.strip_prefix(root).unwrap();
        assert!(
            files.is_empty(),
            "files of {} that import each other in circles (move what they share to a file below them): {files:?}",
            name.display()
        );
    }
}

/// The circles of a crate with these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let sources: Sources =
        files.iter().map(|(name, text)| (PathBuf::from(name), (*text).to_owned())).collect();
    let names = |circle: BTreeSet<PathBuf>| circle.iter().map(|file| file.display().to_string()).collect();
    circles(&sources, Path::new("lib.rs")).into_iter().map(names).collect()
}

const ROOT: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;");

#[test]
fn imports_in_both_directions_are_a_circle() {
    for (from_a, from_b) in [
        ("use crate::b::x::B;", "use crate::a::A;"),
        ("use super::b::x::{self, B};", "use super::super::a::{A as Other};"),
        ("fn f() { crate::b::x::g(); }", "fn g(_: &super::super::a::A) {}"),
        ("use crate::b; fn f() { b::x::g(); }", "use crate::a::*; fn g() {}"),
        ("use crate::{b::{x::{B}}, c};", "pub(crate) use crate::a::A; struct B(A);"),
        ("mod inner { use crate::b::x::B; }", "mod inner { fn f() { super::super::super::a::f() } }"),
    ] {
        let a = format!("{from_a} pub struct A;");
        let b = format!("{from_b} pub struct B;");
        let files =
            [ROOT, ("a.rs", a.as_str()), ("b/mod.rs", "pub mod x;"), ("b/x.rs", b.as_str()), ("c.rs", "")];
        assert_eq!(circles_of(&files), [["a.rs", "b/x.rs"]], "{from_a} {from_b}");
    }
}

#[test]
fn longer_circles_are_found() {
    let files = [
        ROOT,
        ("a.rs", "use crate::b::x::B; pub struct A;"),
        ("b/mod.rs", "pub mod x;"),
        ("b/x.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "use crate::a::A; pub struct C;"),
    ];
    assert_eq!(circles_of(&files), [["a.rs", "b/x.rs", "c.rs"]]);
}

#[test]
fn what_is_handed_on_is_imported_from_where_it_is_defined() {
    for face in ["pub use x::B;", "pub use x::*;", "pub(crate) use self::x::{B};"] {
        let face = format!("pub mod x; {face} pub struct Other;");
        let files = |from_b: &'static str| {
            [
                ROOT,
                ("a.rs", "use crate::b::B; pub struct A;"),
                ("b/mod.rs", ""),
                ("b/x.rs", from_b),
                ("c.rs", ""),
            ]
        };
        let mut circle = files("use crate::a::A; pub struct B;");
        circle[2].1 = &face;
        assert_eq!(circles_of(&circle), [["a.rs", "b/x.rs"]], "{face}");
        // The face itself needs nothing of `a`, and `x` neither.
        let mut none = files("pub struct B;");
        none[2].1 = &face;
        assert_eq!(circles_of(&none), [[""; 0]; 0], "{face}");
    }
}

#[test]
fn a_module_and_its_children_may_use_each_other() {
    let files = [
        ROOT,
        ("a.rs", ""),
        ("b/mod.rs", "mod x; use x::B; pub struct Other; fn f() { x::g() }"),
        ("b/x.rs", "use super::Other; pub struct B;"),
        ("c.rs", ""),
    ];
    assert_eq!(circles_of(&files), [[""; 0]; 0]);
}

#[test]
fn a_circle_through_a_module_and_its_child_is_found() {
    let outside = ("a.rs", "use crate::b::Other; pub struct A;");
    let calls = ("b/mod.rs", "mod x; pub struct Other; fn f() { x::g() }");
    let inside = ("b/x.rs", "use crate::a::A;");
    assert_eq!(circles_of(&[ROOT, outside, calls, inside, ("c.rs", "")]).len(), 1);
    let outside = ("a.rs", "use crate::b::x::B; pub struct A;");
    let above = ("b/mod.rs", "pub mod x; use crate::a::A; pub struct Other;");
    let below = ("b/x.rs", "use super::Other; pub struct B;");
    assert_eq!(circles_of(&[ROOT, outside, above, below, ("c.rs", "")]).len(), 1);
}

#[test]
fn files_of_one_folder_may_be_a_circle() {
    let files = [
        ROOT,
        ("a.rs", "use crate::c::C; pub struct A;"),
        ("b/mod.rs", ""),
        ("c.rs", "use crate::a::A; pub struct C;"),
    ];
    assert_eq!(circles_of(&files), [[""; 0]; 0]);
}

#[test]
fn comments_texts_and_tests_import_nothing() {
    for text in [
        "// use crate::a::A;",
        "/* /* crate::a::f() */ use crate::a::A; */",
        "const TEXT: &str = \"use crate::a::A; \\\" crate::a::f()\";",
        "const TEXT: &str = r#\"use \"crate::a::A\";\"#;",
        "const QUOTE: char = '\"'; // \" crate::a::f() \"",
        "fn f<'a>(_: &'a str) -> char { '\\'' } // ' crate::a::f()",
        "#[cfg(test)] mod tests { use crate::a::A; }",
        "#[cfg(test)] #[allow(unused)] use crate::a::A;",
        "use std::a::A; use serde::{a, b}; fn f() { a::g() }",
    ] {
        let b = format!("{text}\npub struct B;");
        let files = [
            ROOT,
            ("a.rs", "use crate::b::x::B; pub struct A;"),
            ("b/mod.rs", "pub mod x;"),
            ("b/x.rs", b.as_str()),
            ("c.rs", ""),
        ];
        assert_eq!(circles_of(&files), [[""; 0]; 0], "{text}");
        let circle = format!("{b}\nuse crate::a::A;");
        let files = [files[0], files[1], files[2], ("b/x.rs", circle.as_str()), files[4]];
        assert_eq!(circles_of(&files).len(), 1, "what follows is read: {text}");
    }
}
