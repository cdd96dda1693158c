//! Runs the fuzz target on the stable compiler, with mutated seeds from the corpus. `BATZEN_FUZZ_ITERATIONS`
//! makes it run longer.

use crate::common;

use std::path::Path;

use batzen_store::embedded::fuzz_entry::load;
use common::Random;

#[test]
fn mutated_stores_are_opened_or_refused() {
    let iterations: u64 = std::env::var("BATZEN_FUZZ_ITERATIONS")
        .map_or(3_000, |text| text.parse().expect("BATZEN_FUZZ_ITERATIONS is a number"));
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/store_loader");
    let read = |file: std::io::Result<std::fs::DirEntry>| {
        std::fs::read(file.expect("it is readable").path()).expect("it is readable")
    };
    let mut seeds: Vec<Vec<u8>> = std::fs::read_dir(corpus).expect("it is there").map(read).collect();
    seeds.sort();
    assert!(seeds.len() >= 4);
    seeds.iter().for_each(|seed| load(seed));
    let mut random = Random(7);
    for _ in 0..iterations {
        let mut data = seeds[usize::try_from(random.below(seeds.len() as u64)).expect("few")].clone();
        for _ in 0..1 + random.below(4) {
            let at = usize::try_from(random.below(data.len() as u64)).expect("small");
            let end = data.len().min(at + 8);
            match random.below(5) {
                0 => data[at] ^= 1 << random.below(8),
                1 => data[at] = u8::try_from(random.below(256)).expect("a byte"),
                2 => data[at..end].fill(u8::try_from(random.below(2) * 255).expect("a byte")),
                3 => data.extend_from_within(at..end),
                _ => data.truncate(at.max(1)),
            }
        }
        load(&data);
    }
}
