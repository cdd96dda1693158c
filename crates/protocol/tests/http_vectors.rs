//! Recorded exchanges of messages between an exchange, a bank, clients and wallets: every body parses strictly and
//! serialises to an equal value, errors have the status of their code, and every signature verifies.
//!
//! The recordings come with the project; the environment variable `BATZEN_HTTP_VECTORS` names a further directory of
//! the same format.

#![allow(clippy::unwrap_used)]

#[path = "http/bodies.rs"]
mod bodies;
#[path = "http/recording.rs"]
mod recording;

use std::path::Path;

use recording::Recording;

fn directories() -> Vec<std::path::PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/http");
    let further = std::env::var_os("BATZEN_HTTP_VECTORS").map(Into::into);
    [Some(own), further].into_iter().flatten().collect()
}

/// The recordings of each file of a directory.
fn files(directory: &Path) -> Vec<Vec<Recording>> {
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap_or_else(|e| panic!("{}: {e}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no recordings in {}", directory.display());
    paths
        .iter()
        .map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let file = path.file_name().unwrap().to_string_lossy();
            text.lines()
                .filter(|line| !line.trim().is_empty())
                .map(|line| Recording { file: file.to_string(), ..serde_json::from_str(line).unwrap() })
                .collect()
        })
        .collect()
}

/// Runs a check, and says which recording it was that failed.
fn each(recording: &Recording, check: impl FnOnce() + std::panic::UnwindSafe) {
    if let Err(panic) = std::panic::catch_unwind(check) {
        eprintln!(
            "in {} {} step {}: {} {} -> {}",
            recording.file,
            recording.flow,
            recording.step,
            recording.request.method,
            recording.request.path,
            recording.response.status
        );
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn http_vectors_bodies() {
    for directory in directories() {
        for file in files(&directory) {
            let currency =
                file.iter().find_map(|recording| recording.response.body.get("currency")?.as_str());
            for recording in &file {
                each(recording, || bodies::check(recording, currency));
            }
        }
    }
}
