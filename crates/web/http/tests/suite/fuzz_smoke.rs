//! Runs the fuzz target on the stable compiler, with mutated seeds from the corpus. `BATZEN_FUZZ_ITERATIONS`
//! makes it run longer.

use std::path::Path;

use batzen_http::codec::fuzz_entry::frame;

/// Pseudo-random numbers, the same in every run (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }
}

#[test]
fn mutated_messages_are_framed_within_their_bytes() {
    let iterations: u64 =
        std::env::var("BATZEN_FUZZ_ITERATIONS").ok().map_or(10_000, |text| text.parse().unwrap());
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/http_messages");
    let mut paths: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(seeds.len() >= 3);
    seeds.iter().for_each(|seed| frame(seed));
    let mut dice = Dice(7);
    for _ in 0..iterations {
        let mut data = seeds[dice.below(seeds.len())].clone();
        for _ in 0..dice.below(4) {
            let at = dice.below(data.len());
            match dice.below(5) {
                0 => data[at] ^= 1 << dice.below(8),
                1 => data[at] = u8::try_from(dice.below(256)).unwrap(),
                2 => data.truncate(at.max(1)),
                3 => data.extend_from_slice(&seeds[dice.below(seeds.len())]),
                _ => {
                    let part = data[at..].to_vec();
                    data.splice(at..at, part);
                }
            }
        }
        frame(&data);
    }
}
