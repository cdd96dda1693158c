//! Damaged files: a store opens with what was acknowledged up to some commit, or refuses and says where the damage is. It
//! never serves anything else.

mod common;

use std::path::{Path, PathBuf};

use batzen_store::conformance::{Items, TABLES};
use batzen_store::embedded::sim::SimDisk;
use batzen_store::embedded::{EmbeddedStore, FrameInfo, Report};
use batzen_store::{Backend, Store, StoreError};
use common::{DIR, History, Random, open, random_changes, sim_options};

/// A store at rest, its history, and its frames.
struct Image {
    disk: SimDisk,
    history: History,
    frames: Vec<FrameInfo>,
}

fn inspect(disk: &SimDisk) -> (Report, Vec<FrameInfo>) {
    let mut frames = Vec::new();
    let report = EmbeddedStore::inspect(DIR, disk, &mut |frame| frames.push(frame)).expect("it is a store");
    (report, frames)
}

fn image(seed: u64, commits: usize, checkpoint: bool) -> Image {
    let disk = SimDisk::new(seed);
    let store = open(&disk).expect("it opens");
    let mut history = History::new();
    let mut random = Random(seed);
    for _ in 0..commits {
        let mut rows = history.states.last().expect("never empty").clone();
        let changes = random_changes(&mut random, &mut rows);
        assert_eq!(store.commit(&changes).expect("it works"), batzen_store::CommitOutcome::Committed);
        history.states.push(rows);
    }
    if checkpoint {
        store.checkpoint().expect("it works");
    }
    drop(store);
    let (report, frames) = inspect(&disk);
    assert_eq!((report.problems.len(), report.torn_tail), (0, None));
    Image { disk, history, frames }
}

fn segment_path(frame: &FrameInfo) -> PathBuf {
    Path::new(DIR).join(format!("journal-{:08}.seg", frame.segment))
}

/// Opens a damaged copy: the commit it is as after, or the refusal.
fn reopen(image: &Image, damage: impl FnOnce(&SimDisk)) -> Result<Result<usize, StoreError>, String> {
    let disk = image.disk.copy();
    damage(&disk);
    match open(&disk) {
        Ok(store) => image.history.check(&Store::new(store)).map(Ok),
        Err(error @ (StoreError::Corrupt { .. } | StoreError::Format { .. })) => Ok(Err(error)),
        Err(error) => Err(format!("neither open nor refused: {error}")),
    }
}

#[test]
fn cuts_in_the_last_frames_leave_whole_commits() {
    let image = image(1, 40, false);
    let last = image.frames.last().expect("there are frames");
    let path = segment_path(last);
    let tail: Vec<&FrameInfo> = image.frames.iter().filter(|frame| frame.segment == last.segment).collect();
    let (start, end) = (tail[0].offset, last.offset + last.bytes);
    assert!(tail.len() >= 3, "the last segment has several frames");
    let content = image.disk.content(&path);
    let states = &image.history.states;
    let before = image.frames.len() - tail.len();
    for cut in start..=end {
        let whole = tail.iter().filter(|frame| frame.offset + frame.bytes <= cut).count();
        let cut = usize::try_from(cut).expect("small");
        let at = reopen(&image, |disk| disk.tamper(&path, |data| data.truncate(cut)));
        let at = at.expect("a cut is a torn tail").expect("a cut is a torn tail");
        assert!(states[at] == states[before + whole], "cut at byte {cut}");
        // Zeros instead of an end, as after a crash in a segment filled ahead. A frame may end with zeros itself.
        let is_whole = |frame: &&&FrameInfo| {
            let frame_end = usize::try_from(frame.offset + frame.bytes).expect("small");
            content[cut.min(frame_end)..frame_end].iter().all(|&b| b == 0)
        };
        let whole = tail.iter().filter(is_whole).count();
        let zeroed = reopen(&image, |disk| disk.tamper(&path, |data| data[cut..].fill(0)));
        let at = zeroed.expect("a torn tail").expect("a torn tail");
        assert!(states[at] == states[before + whole], "zeros from byte {cut}");
    }
}

#[test]
fn cuts_within_a_segments_header_are_refused() {
    let image = image(1, 40, false);
    let path = segment_path(image.frames.last().expect("there are frames"));
    for cut in 0..64 {
        let result = reopen(&image, |disk| disk.tamper(&path, |data| data.truncate(cut))).expect("refused");
        assert!(matches!(result, Err(StoreError::Corrupt { file, .. }) if file == path));
    }
}

#[test]
fn every_flipped_bit_is_a_torn_tail_or_refused() {
    let image = image(2, 30, false);
    let last = image.frames.last().expect("there are frames");
    let mut random = Random(7);
    let (mut refused, mut dropped, mut unharmed) = (0, 0, 0);
    for path in image.disk.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "seg")) {
        for at in 0..image.disk.content(&path).len() {
            let bit = 1 << random.below(8);
            let in_last = path == segment_path(last) && at as u64 >= last.offset;
            match reopen(&image, |disk| disk.tamper(&path, |data| data[at] ^= bit))
                .expect("nothing wrong is served")
            {
                Ok(commit) => {
                    let lost =
                        image.history.states[commit] != *image.history.states.last().expect("never empty");
                    // Only the last frame can be dropped: from all others it is known that they were complete.
                    assert!(
                        in_last || !lost,
                        "byte {at} of {} flipped: commits lost in silence",
                        path.display()
                    );
                    *(if lost { &mut dropped } else { &mut unharmed }) += 1;
                }
                Err(StoreError::Corrupt { file, offset, .. }) => {
                    assert_eq!(file, path);
                    assert!(offset <= at as u64, "the damage at {at} is named at {offset}");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(
        refused > 1000 && dropped > 40 && unharmed > 100,
        "{refused} refused, {dropped} dropped, {unharmed} unharmed"
    );
}

/// After a checkpoint the journal before it is not read at opening: each row is verified when it is read.
#[test]
fn flipped_bits_under_a_checkpoint_are_found_when_read() {
    let image = image(3, 30, true);
    let complete = image.history.states.last().expect("never empty");
    let (mut found, mut unharmed) = (0, 0);
    for path in image.disk.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "seg")) {
        for at in (64..image.disk.content(&path).len()).step_by(3) {
            let disk = image.disk.copy();
            disk.tamper(&path, |data| data[at] ^= 4);
            let store = match open(&disk) {
                Ok(store) => Store::new(store),
                Err(StoreError::Corrupt { file, .. }) => {
                    assert_eq!(file, path);
                    found += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            match store.all::<Items>() {
                Ok(all) => {
                    let rows: common::Rows = all.into_iter().map(|found| (found.key, found.row)).collect();
                    assert_eq!(
                        &rows,
                        complete,
                        "byte {at} of {} flipped: a wrong row was served",
                        path.display()
                    );
                    unharmed += 1;
                }
                Err(StoreError::Corrupt { file, .. }) => {
                    assert_eq!(file, path);
                    found += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(found > 200 && unharmed > 50, "{found} found, {unharmed} unharmed");
}

/// A checkpoint remembers how long the journal was: the last frame cannot vanish as a torn tail.
#[test]
fn a_checkpoint_guards_the_tail() {
    let image = image(4, 30, true);
    let last = image.frames.last().expect("there are frames");
    for at in last.offset..last.offset + last.bytes {
        let at = usize::try_from(at).expect("small");
        let cut = reopen(&image, |disk| disk.tamper(&segment_path(last), |data| data.truncate(at)));
        assert!(matches!(cut.expect("refused"), Err(StoreError::Corrupt { .. })), "cut at byte {at}");
    }
}

#[test]
fn damaged_checkpoints_are_rebuilt() {
    let image = image(5, 30, true);
    let path = Path::new(DIR).join("checkpoint.idx");
    let length = image.disk.content(&path).len();
    let complete = image.history.states.last().expect("never empty");
    for at in 0..length {
        let flipped = reopen(&image, |disk| disk.tamper(&path, |data| data[at] ^= 16));
        let at_commit = flipped.expect("nothing wrong is served").expect("the journal has everything");
        assert_eq!(&image.history.states[at_commit], complete, "byte {at} flipped");
    }
    for cut in 0..length {
        let cut = reopen(&image, |disk| disk.tamper(&path, |data| data.truncate(cut)));
        let at_commit = cut.expect("nothing wrong is served").expect("the journal has everything");
        assert_eq!(&image.history.states[at_commit], complete);
    }
}

#[test]
fn damaged_manifests_are_refused() {
    let image = image(6, 10, true);
    let path = Path::new(DIR).join("MANIFEST");
    for at in 0..image.disk.content(&path).len() {
        for bit in 0..8 {
            let result = reopen(&image, |disk| disk.tamper(&path, |data| data[at] ^= 1 << bit));
            assert!(
                matches!(result, Ok(Err(StoreError::Corrupt { .. } | StoreError::Format { .. }))),
                "byte {at} bit {bit}"
            );
        }
    }
}

#[test]
fn missing_segments_are_refused() {
    let image = image(7, 60, false);
    let segments: Vec<PathBuf> =
        image.disk.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
    assert!(segments.len() >= 4);
    for missing in &segments[..segments.len() - 1] {
        let result =
            reopen(&image, |disk| batzen_store::embedded::Disk::remove(disk, missing).expect("it is there"));
        assert!(matches!(result, Ok(Err(StoreError::Corrupt { file, .. })) if file == *missing));
    }
}

/// Misdirected writes: a genuine segment under another's name, a genuine frame elsewhere.
#[test]
fn misplaced_data_is_refused() {
    let image = image(8, 60, false);
    let segments: Vec<PathBuf> =
        image.disk.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
    let other = image.disk.content(&segments[1]);
    let result = reopen(&image, |disk| disk.tamper(&segments[0], |data| data.clone_from(&other)));
    assert!(matches!(result, Ok(Err(StoreError::Corrupt { .. }))));
    let (first, second) = (&image.frames[0], &image.frames[1]);
    let place = |frame: &FrameInfo| {
        let start = usize::try_from(frame.offset).expect("small");
        start..start + usize::try_from(frame.bytes).expect("small")
    };
    let result = reopen(&image, |disk| {
        disk.tamper(&segment_path(first), |data| {
            let frame = data[place(second)].to_vec();
            let start = place(first).start;
            data[start..start + frame.len()].copy_from_slice(&frame);
        });
    });
    assert!(matches!(result, Ok(Err(StoreError::Corrupt { .. }))));
}

/// What clients store cannot pass for the store's own frames, whatever they have seen of other stores.
#[test]
fn stored_frames_are_only_data() {
    use batzen_store::conformance::{ItemRow, key};
    use batzen_store::{ChangeSet, List};
    let image = image(9, 10, false);
    let foreign = image.disk.content(&segment_path(&image.frames[0]));
    let disk = SimDisk::new(9);
    // Another store, another key.
    let options = || batzen_store::embedded::Options {
        identity: Some([7; 32]),
        segment_bytes_max: 1 << 20,
        ..sim_options(&disk)
    };
    let store = EmbeddedStore::open(DIR, TABLES, options()).expect("it opens");
    let row = ItemRow { label: String::new(), due: None, tags: List(vec![]), body: foreign };
    let mut changes = ChangeSet::new();
    changes.insert::<Items>(&key(1, 1), &row);
    assert_eq!(store.commit(&changes).expect("it works"), batzen_store::CommitOutcome::Committed);
    drop(store);
    let (_, frames) = inspect(&disk);
    assert_eq!(frames.len(), 1);
    // The commit torn: the frames in its data are not taken for later commits.
    disk.tamper(&segment_path(&frames[0]), |data| data[200] ^= 1);
    let store = EmbeddedStore::open(DIR, TABLES, options()).expect("a torn tail");
    assert_eq!(Backend::count(&store, TABLES[0]).expect("it works"), 0);
}

#[test]
fn verification_names_all_damage() {
    let image = image(10, 40, true);
    assert!(inspect(&image.disk).0.checkpoint_bytes.is_some());
    let disk = image.disk.copy();
    for frame in [&image.frames[3], &image.frames[20]] {
        disk.tamper(&segment_path(frame), |data| {
            data[usize::try_from(frame.offset).expect("small") + 60] ^= 1;
        });
    }
    disk.tamper(&Path::new(DIR).join("checkpoint.idx"), |data| data[30] ^= 1);
    let (report, frames) = inspect(&disk);
    assert_eq!(report.problems.len(), 3, "{:?}", report.problems);
    assert_eq!(frames.len(), image.frames.len() - 2);
    assert_eq!(report.segments.iter().map(|segment| segment.frames).sum::<u64>(), frames.len() as u64);
    let last = image.frames.last().expect("there are frames");
    let disk = image.disk.copy();
    disk.tamper(&segment_path(last), |data| data[usize::try_from(last.offset).expect("small") + 60] ^= 1);
    assert_eq!(inspect(&disk).0.torn_tail, Some((segment_path(last), last.offset)));
}
