//! Damage to the files of a store whose service was killed.

use std::path::{Path, PathBuf};

use crate::process::{Service, run, stderr, stdout};

/// The directories of stores in a directory.
pub fn stores_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(stores_below(&entry.path()));
        } else if entry.file_name() == "MANIFEST" {
            found.push(dir.to_owned());
        }
    }
    found
}

/// The last frame of a store's journal: its file, and its byte range in the file.
pub fn last_frame(store: &Path) -> (PathBuf, std::ops::Range<usize>) {
    let output = run(&["store", "inspect", store.to_str().unwrap(), "--json", "--frames"]);
    let facts: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let last = facts["frames"].as_array().unwrap().last().expect("there are commits");
    let number = |name: &str| usize::try_from(last[name].as_u64().unwrap()).unwrap();
    let file = store.join(format!("journal-{:08}.seg", number("segment")));
    (file, number("offset")..number("offset") + number("bytes"))
}

/// Damages the journal of an idle store in several ways: a flipped bit in each part of the last commit, and a
/// file that lacks 100 bytes. Each time `batzen store verify` must find the damage, and the service started
/// with `serve` must refuse to start and say what to do. Restores the store, except for files that can be
/// rebuilt.
pub fn assert_damage_is_refused(dir: &Path, store: &Path, serve: &[&str]) {
    let (file, frame) = last_frame(store);
    let sound = std::fs::read(&file).unwrap();
    // With these files gone, only the commit itself shows that it was acknowledged.
    for guard in ["checkpoint.idx", "tail.mark"] {
        let _ = std::fs::remove_file(store.join(guard));
    }
    let middle = frame.start + frame.len() / 2;
    let flips = [frame.start + 9, middle, frame.end - 1].map(|at| {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        bytes
    });
    for (n, damaged) in flips.into_iter().chain([sound[..sound.len() - 100].to_vec()]).enumerate() {
        std::fs::write(&file, damaged).unwrap();
        let output = run(&["store", "verify", store.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{n}: {}", stdout(&output));
        let log = dir.join("damaged.log");
        let _ = std::fs::remove_file(&log);
        let status = Service::start(dir, "damaged", serve).wait();
        let said = std::fs::read_to_string(log).unwrap();
        assert_eq!(status.code(), Some(1), "{said}");
        for part in [file.to_str().unwrap(), "corrupt data in", "restore a backup", "batzen store cut --help"]
        {
            assert!(said.contains(part), "{n}: no word of {part:?} in: {said}");
        }
    }
    std::fs::write(&file, &sound).unwrap();
    let output = run(&["store", "verify", store.to_str().unwrap()]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
}

/// Flips a bit in the last commit, and cuts that commit off.
pub fn cut_last(store: &Path) {
    let (file, frame) = last_frame(store);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[frame.start + 50] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let output = run(&["store", "cut", store.to_str().unwrap(), "--reason", "no backup"]);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(output.status.success() && said.contains(&format!("cut at byte {}", frame.start)), "{said}");
    let output = run(&["store", "cut", store.to_str().unwrap(), "--reason", "again"]);
    assert!(!output.status.success() && stderr(&output).contains("nothing to cut"), "{}", stderr(&output));
}
