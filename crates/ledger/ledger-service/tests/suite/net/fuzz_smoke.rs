//! The fuzz target on the stable compiler, with mutated seeds of the corpus. `BATZEN_FUZZ_ITERATIONS` sets
//! the length.

use crate::net::common;

use std::path::Path;

use batzen_ledger_service::net::fuzz_entry::frames;
use common::Dice;

#[test]
fn mutated_frames_are_read_or_refused() {
    let iterations: u64 =
        std::env::var("BATZEN_FUZZ_ITERATIONS").ok().map_or(20_000, |text| text.parse().unwrap());
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/ledger_frames");
    let seeds: Vec<Vec<u8>> =
        std::fs::read_dir(corpus).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    assert!(seeds.len() >= 3);
    let mut dice = Dice::new(7);
    for _ in 0..iterations {
        let mut data = seeds[usize::try_from(dice.below(seeds.len() as u64)).unwrap()].clone();
        for _ in 0..dice.below(4) {
            let at = usize::try_from(dice.below(data.len() as u64)).unwrap();
            match dice.below(3) {
                0 => data[at] ^= 1 << dice.below(8),
                1 => data[at] = u8::try_from(dice.below(256)).unwrap(),
                _ => data.truncate(at.max(1)),
            }
        }
        frames(&data);
    }
}
