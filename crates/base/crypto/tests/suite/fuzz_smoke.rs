//! Feeds the seeds of the fuzz target and mutations of them to it: a short version of fuzzing.
//! `BATZEN_FUZZ_ITERATIONS` sets the number of mutations.

use std::path::Path;

use batzen_crypto::fuzz_entry::eddsa_paths;
use batzen_crypto::hash::sha512_parts;

#[test]
fn eddsa_paths_agree_on_mutated_seeds() {
    let iterations: u64 =
        std::env::var("BATZEN_FUZZ_ITERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/eddsa_paths");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).expect("a corpus").map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let seeds: Vec<_> = paths.iter().map(|path| std::fs::read(path).expect("a seed")).collect();
    for seed in &seeds {
        eddsa_paths(seed);
    }
    for iteration in 0..iterations {
        let random = *sha512_parts(&[b"mutation", &iteration.to_be_bytes()]).as_bytes();
        let mut data = seeds[usize::from(random[0]) % seeds.len()].clone();
        for change in random[1..].chunks_exact(3).take(usize::from(random[63] % 8)) {
            let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % data.len();
            match change[2] % 4 {
                0 => data[at] ^= 1 << (change[1] % 8),
                1 => data[at] = change[0],
                2 => data.insert(at, change[1]),
                _ => drop(data.remove(at)),
            }
        }
        eddsa_paths(&data);
    }
}
