//! Changing one option of a configuration file, with all its other lines, comments and includes kept.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    ConfigError, Loader, Origin, Source, canonical,
    parse::{self, Item, check_writable, quote},
};

/// Where a change goes.
#[derive(Clone, Copy)]
enum Insertion {
    /// In place of the option's last line, or at the end of the section's last part, or of the file.
    Fitting,
    /// At the end of the file, where nothing overrides it.
    End,
}

impl Loader {
    /// Sets one option in a configuration file, which is created if it is missing. All other lines stay as they
    /// are; the names on the new line are in upper case. Readers see either the old or the new file. A file
    /// keeps its permissions; a new one can be read only by its owner.
    ///
    /// # Errors
    /// [`ConfigError::Unwritable`] for names and values that the dialect cannot express; otherwise a file that
    /// cannot be read, parsed or written. Nothing has changed then.
    pub fn set_in_file(
        &self,
        path: &Path,
        section: &str,
        option: &str,
        value: &str,
    ) -> Result<(), ConfigError> {
        check_writable(section, option, value)?;
        let fail = |error| ConfigError::File { path: path.to_owned(), error };
        // Follow links to the file itself, so that a link is kept.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let _lock = lock(&target).map_err(fail)?;
        let (text, mode) = match fs::metadata(&target) {
            Ok(metadata) => {
                // Report mistakes under the file's own name.
                self.load(Some(&target))?;
                let text = fs::read_to_string(&target).map_err(fail)?;
                (text, metadata.permissions().mode() & 0o7777)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), 0o600),
            Err(error) => return Err(fail(error)),
        };
        let temporary = Temporary::beside(&target).map_err(fail)?;
        for place in [Insertion::Fitting, Insertion::End] {
            temporary.write(&with_option(&text, section, option, value, place), mode).map_err(fail)?;
            // An include further down may set the option as well.
            if self.load(Some(&temporary.0))?.text(section, option) == Some(value) {
                break;
            }
        }
        fs::rename(&temporary.0, &target).map_err(fail)
    }
}

/// Locks a file against other writers; `None` if it does not exist.
fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        file.lock()?;
        // Another writer may have replaced the file meanwhile.
        if fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|held| held.ino() == now.ino())) {
            return Ok(Some(file));
        }
    }
}

/// A file that is removed when it is dropped, unless it was renamed.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or_else(|| io::Error::other("not the name of a file"))?;
        let mut temporary = name.to_owned();
        // Threads of a process must not share a name.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        temporary.push(format!(".new{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)));
        Ok(Self(target.with_file_name(temporary)))
    }

    fn write(&self, text: &str, mode: u32) -> io::Result<()> {
        let _ = fs::remove_file(&self.0);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.0)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Usually it has been renamed.
        let _ = fs::remove_file(&self.0);
    }
}

/// The lines of a text that matter for a change, from 0.
#[derive(Default)]
struct Lines {
    /// The last line with the option.
    option: Option<usize>,
    /// The last line of the last part of the section: its heading, an option or an include.
    section: Option<usize>,
}

fn find(text: &str, section: &str, option: &str) -> Lines {
    let (section, option) = (canonical(section), canonical(option));
    let mut lines = Lines::default();
    let place = Source { origin: Origin::File, file: None, line: 0 };
    // The text has been parsed before, so there is no error.
    let _ = parse::lines(text, &place, &mut |at, item, source| {
        if canonical(at) == section {
            lines.section = Some(source.line - 1);
            if matches!(item, Item::Option(name, _) if canonical(name) == option) {
                lines.option = Some(source.line - 1);
            }
        }
        Ok(())
    });
    lines
}

/// The text with an option set.
fn with_option(text: &str, section: &str, option: &str, value: &str, place: Insertion) -> String {
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let line = format!("{} = {}", canonical(option), quote(value));
    let found = match place {
        Insertion::Fitting => find(text, section, option),
        Insertion::End => Lines::default(),
    };
    let mut out = String::with_capacity(text.len() + line.len() + 32);
    for (number, old) in text.split_inclusive('\n').enumerate() {
        if found.option == Some(number) {
            out.push_str(&line);
            out.push_str(if old.ends_with('\n') { end } else { "" });
            continue;
        }
        out.push_str(old);
        if found.option.is_none() && found.section == Some(number) {
            if !old.ends_with('\n') {
                out.push_str(end);
            }
            out.push_str(&line);
            out.push_str(end);
        }
    }
    if found.option.is_none() && found.section.is_none() {
        if !out.is_empty() {
            if !out.ends_with('\n') {
                out.push_str(end);
            }
            out.push_str(end);
        }
        out.push_str(&format!("[{}]{end}{line}{end}", canonical(section)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, section: &str, option: &str, value: &str) -> String {
        with_option(text, section, option, value, Insertion::Fitting)
    }

    #[test]
    fn all_other_lines_stay() {
        let text = "# First.\n[a]\n  x = 1 \n% comment\n\n[b]\ny=2\n# the end";
        assert_eq!(set(text, "A", "x", "3"), text.replace("  x = 1 ", "X = 3"));
        assert_eq!(set(text, "a", "z", "3"), text.replace("  x = 1 \n", "  x = 1 \nZ = 3\n"));
        assert_eq!(set(text, "b", "z", " 3"), text.replace("y=2\n", "y=2\nZ = \" 3\"\n"));
        assert_eq!(set(text, "c", "z", "3"), format!("{text}\n\n[C]\nZ = 3\n"));
        assert_eq!(set("", "c", "z", "3"), "[C]\nZ = 3\n");
        assert_eq!(set("[c]", "c", "z", "3"), "[c]\nZ = 3\n");
        assert_eq!(set("[c]\nz = 1", "c", "z", "3"), "[c]\nZ = 3");
        assert_eq!(set("[c]\r\nz = 1\r\n", "c", "y", "3"), "[c]\r\nz = 1\r\nY = 3\r\n");
    }

    #[test]
    fn the_last_of_several_lines_changes() {
        let text = "[a]\nx = 1\nx = 2\n[b]\n[A]\nX = 3\n[b]\nx = 4\n";
        assert_eq!(set(text, "a", "x", "9"), text.replace("X = 3", "X = 9"));
        assert_eq!(set(text, "a", "y", "9"), text.replace("X = 3\n", "X = 3\nY = 9\n"));
    }
}
