//! Result directories: creating one, and finding those below a directory.

use std::path::{Path, PathBuf};

use super::{LIMITS_FILE, RESULT_FILE, ResultError};
use crate::bench::BenchError;

/// Number of levels below that a directory are searched for results: `bench partitions` creates a directory of
/// results among other results.
const LEVELS: u32 = 2;
/// Creates the directory of a result. It never overwrites an existing result, since the user may have meant
/// another directory.
///
/// # Errors
/// When there is a result, and when the directory cannot be made or written to.
pub(crate) fn claim_directory(path: &Path) -> Result<(), BenchError> {
    if [RESULT_FILE, LIMITS_FILE, "world"].iter().any(|name| path.join(name).exists()) {
        let path = path.display();
        return Err(BenchError::Usage(format!(
            "{path} holds a result already; choose another directory with --out"
        )));
    }
    std::fs::create_dir_all(path).map_err(BenchError::io(path))?;
    // An existing directory may not be writable; better to find out before measuring than after.
    let trial = path.join(".batzen-bench");
    std::fs::write(&trial, "").and_then(|()| std::fs::remove_file(&trial)).map_err(BenchError::io(path))
}

/// The results in a directory: the directory itself, or those below it.
pub(crate) fn results_of(directory: &Path) -> Result<Vec<PathBuf>, ResultError> {
    if !is_result(directory) {
        let below = below(directory)?;
        if !below.is_empty() {
            return Ok(below);
        }
    }
    // Reading it will report why it is not a result.
    Ok(vec![directory.to_owned()])
}

/// The results below a directory, in the order of their names.
pub(super) fn below(directory: &Path) -> Result<Vec<PathBuf>, ResultError> {
    let mut found = Vec::new();
    if directory.is_dir() {
        descend(directory, LEVELS, &mut found)?;
    }
    Ok(found)
}

fn descend(directory: &Path, levels: u32, found: &mut Vec<PathBuf>) -> Result<(), ResultError> {
    let entries = std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>());
    let mut entries = entries.map_err(|source| ResultError::Io { path: directory.to_owned(), source })?;
    entries.sort_unstable();
    for entry in entries {
        if is_result(&entry) {
            found.push(entry);
        } else if levels > 1 && entry.is_dir() && !entry.is_symlink() {
            descend(&entry, levels - 1, found)?;
        }
    }
    Ok(())
}

fn is_result(directory: &Path) -> bool {
    [RESULT_FILE, LIMITS_FILE].iter().any(|name| directory.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::result::Run;
    use crate::bench::results::result::tests::sample_run;

    #[test]
    fn a_directory_of_results_stands_for_them() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["b", "a", "partitions/02", "partitions/00", "too/far/away"] {
            sample_run(&at(name)).write().unwrap();
        }
        std::fs::create_dir_all(at("limits")).unwrap();
        std::fs::write(at("limits").join(LIMITS_FILE), "{}").unwrap();
        std::fs::create_dir_all(at("interrupted/world")).unwrap();
        let names = ["a", "b", "limits", "partitions/00", "partitions/02"];
        assert_eq!(results_of(directory.path()).unwrap(), names.map(at));
        assert_eq!(results_of(&at("partitions")).unwrap(), ["partitions/00", "partitions/02"].map(at));
        for itself in ["a", "limits", "interrupted", "absent", "a/result.json"] {
            assert_eq!(results_of(&at(itself)).unwrap(), [at(itself)]);
        }
        let error = Run::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("; results below it: ") && error.ends_with(", …"), "{error}");
        let error = Run::read(&at("partitions")).unwrap_err().to_string();
        assert!(error.contains("partitions/00, ") && error.ends_with("partitions/02"), "{error}");
    }

    #[test]
    fn existing_results_are_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        claim_directory(&at("deep/new")).unwrap();
        claim_directory(&at("deep/new")).unwrap();
        assert_eq!(std::fs::read_dir(at("deep/new")).unwrap().count(), 0, "nothing is left of the trial");
        for name in [RESULT_FILE, LIMITS_FILE, "world"] {
            std::fs::create_dir_all(at(name)).unwrap();
            std::fs::write(at(name).join(name), "").unwrap();
            match claim_directory(&at(name)) {
                Err(BenchError::Usage(reason)) => assert!(reason.contains("--out"), "{reason}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(matches!(claim_directory(Path::new("/proc/self")), Err(BenchError::Io { .. })));
    }
}
