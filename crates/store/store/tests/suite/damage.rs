//! Damaged files: a store opens with the state after some commit, or refuses to open and reports where the
//! damage is. It never serves anything else.

use crate::common;

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

/// Opens a damaged copy. Returns the commit whose state it has, or the refusal.
fn reopen(image: &Image, damage: impl FnOnce(&SimDisk)) -> Result<Result<usize, StoreError>, String> {
    let disk = image.disk.copy();
    damage(&disk);
    match open(&disk) {
        Ok(store) => image.history.check(&Store::new(store)).map(Ok),
        Err(error @ (StoreError::Corrupt { .. } | StoreError::Format { .. })) => Ok(Err(error)),
        Err(error) => Err(format!("neither open nor refused: {error}")),
    }
}

/// The same as after a power loss within a write: the segment was filled in advance, so there are zeros and
/// no end.
#[test]
fn unwritten_ends_leave_whole_commits() {
    let image = image(1, 45, false);
    let last = image.frames.last().expect("there are frames");
    let path = segment_path(last);
    let tail: Vec<&FrameInfo> = image.frames.iter().filter(|frame| frame.segment == last.segment).collect();
    assert!(tail.len() >= 3, "the last segment has several frames");
    let states = &image.history.states;
    let before = image.frames.len() - tail.len();
    for frame in &tail {
        for cut in (frame.offset..frame.offset + frame.bytes).step_by(8) {
            let is_possible = cut.is_multiple_of(512) || cut == frame.offset;
            let whole = tail.iter().filter(|frame| frame.offset + frame.bytes <= cut).count();
            let cut = usize::try_from(cut).expect("small");
            let zeroed = reopen(&image, |disk| disk.tamper(&path, |data| data[cut..].fill(0)));
            match zeroed.expect("only correct rows are served") {
                Ok(at) => assert!(states[at] == states[before + whole], "zeros from byte {cut}"),
                Err(error) => assert!(!is_possible, "zeros from byte {cut}: {error}"),
            }
        }
    }
}

/// A file that is shorter than its segment was when created is damaged, even if its frames are whole.
#[test]
fn short_segments_are_refused() {
    let image = image(1, 40, false);
    let last = image.frames.last().expect("there are frames");
    let path = segment_path(last);
    let length = image.disk.content(&path).len();
    let short = [1, 8, 100, length / 2, length - 70].map(|missing| length - missing);
    for cut in short.into_iter().chain([usize::try_from(last.offset + last.bytes).expect("small")]) {
        let disk = image.disk.copy();
        disk.tamper(&path, |data| data.truncate(cut));
        let (report, _) = inspect(&disk);
        assert!(!report.problems.is_empty(), "{cut} of {length} bytes are called sound");
        let opened = reopen(&image, |disk| disk.tamper(&path, |data| data.truncate(cut)));
        assert!(matches!(opened, Ok(Err(StoreError::Corrupt { file, .. })) if file == path));
    }
}

/// A store whose last commit takes several sectors, with rows that are mostly zeros among them.
fn image_with_large_last(seed: u64) -> Image {
    use batzen_store::conformance::{ItemRow, key};
    use batzen_store::{ChangeSet, List};
    let Image { disk, mut history, .. } = image(seed, 12, false);
    let store = open(&disk).expect("it opens");
    let mut rows = history.states.last().expect("never empty").clone();
    let mut changes = ChangeSet::new();
    for item in 100..104 {
        let label = "x".repeat(usize::try_from(item).expect("small") * 4);
        let row = ItemRow { label, due: Some(0), tags: List(vec![0; 20]), body: vec![] };
        changes.insert::<Items>(&key(1, item), &row);
        rows.insert(key(1, item), row);
    }
    assert_eq!(store.commit(&changes).expect("it works"), batzen_store::CommitOutcome::Committed);
    history.states.push(rows);
    drop(store);
    let (_, frames) = inspect(&disk);
    Image { disk, history, frames }
}

/// The last acknowledged commit never disappears, whichever bit of its frame is flipped.
#[test]
fn a_flipped_bit_in_the_last_commit_is_never_dropped() {
    let image = image_with_large_last(11);
    let last = image.frames.last().expect("there are frames");
    let path = segment_path(last);
    for at in last.offset..last.offset + last.bytes {
        for bit in 0..8 {
            let flip = |disk: &SimDisk| {
                disk.tamper(&path, |data| data[usize::try_from(at).expect("small")] ^= 1 << bit);
            };
            let opened = reopen(&image, flip).expect("only correct rows are served");
            let Err(StoreError::Corrupt { file, offset, what }) = opened else {
                panic!("byte {at} bit {bit}: opened or refused for another reason: {opened:?}");
            };
            assert!(file == path && offset <= at, "the damage at {at} is reported at {offset}");
            assert!(what.contains("restore a backup"), "{what}");
            if bit == at % 8 {
                let disk = image.disk.copy();
                flip(&disk);
                let (report, _) = inspect(&disk);
                assert_eq!((report.problems.len(), report.torn_tail), (1, None), "{:?}", report.problems);
            }
        }
    }
}

/// A store opens in the state before its last write, whichever sectors of that write are missing.
#[test]
fn torn_last_commit_is_dropped() {
    let image = image_with_large_last(12);
    let last = image.frames.last().expect("there are frames");
    let (start, end) = (last.offset, last.offset + last.bytes);
    let sectors: Vec<(u64, u64)> = (start / 512..end.div_ceil(512))
        .map(|sector| (start.max(sector * 512), end.min((sector + 1) * 512)))
        .collect();
    assert!(sectors.len() >= 4, "{} sectors", sectors.len());
    let before = image.history.states.len() - 2;
    for kept in 0..(1_u32 << sectors.len()) - 1 {
        let tear = |disk: &SimDisk| {
            disk.tamper(&segment_path(last), |data| {
                for (_, (from, to)) in (0..).zip(&sectors).filter(|(n, _)| kept & 1 << n == 0) {
                    data[usize::try_from(*from).expect("small")..usize::try_from(*to).expect("small")]
                        .fill(0);
                }
            });
        };
        let at = reopen(&image, tear).expect("only correct rows are served").expect("a torn tail");
        assert!(image.history.states[at] == image.history.states[before], "sectors {kept:b}");
        let disk = image.disk.copy();
        tear(&disk);
        let (report, _) = inspect(&disk);
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

/// Once the end of the journal is marked, even the loss of whole frames or segments is noticed.
#[test]
fn loss_of_a_marked_tail_is_noticed() {
    let image = image_with_large_last(13);
    // Opening marks the end that it has read. So does maintenance, and so does the background thread soon
    // after the last commit.
    drop(open(&image.disk).expect("it opens"));
    let last = image.frames.last().expect("there are frames");
    let path = segment_path(last);
    let start = usize::try_from(last.offset).expect("small");
    let refused = |damage: &dyn Fn(&SimDisk)| {
        let disk = image.disk.copy();
        damage(&disk);
        assert!(!inspect(&disk).0.problems.is_empty(), "called sound");
        let opened = reopen(&image, damage);
        assert!(matches!(opened, Ok(Err(StoreError::Corrupt { .. }))), "{opened:?}");
    };
    refused(&|disk| disk.tamper(&path, |data| data[start..].fill(0)));
    refused(&|disk| disk.tamper(&path, |data| data[start + 48..].fill(0)));
    refused(&|disk| disk.tamper(&path, |data| data[64..].fill(0)));
    let later = |name: &PathBuf| name.extension().is_some_and(|e| e == "seg") && *name >= path;
    refused(&|disk| {
        for file in disk.files().into_iter().filter(later) {
            batzen_store::embedded::Disk::remove(disk, &file).expect("it is there");
        }
    });
    // A damaged or lost mark does no harm.
    let mark = Path::new(DIR).join("tail.mark");
    assert_eq!(image.disk.content(&mark).len(), 8192);
    for at in (0..48).chain(4096..4144) {
        let opened = reopen(&image, |disk| disk.tamper(&mark, |data| data[at] ^= 8));
        assert_eq!(opened.expect("right").expect("it opens"), image.history.states.len() - 1);
    }
    let opened = reopen(&image, |disk| {
        batzen_store::embedded::Disk::remove(disk, &mark).expect("it is there");
    });
    assert_eq!(opened.expect("right").expect("it opens"), image.history.states.len() - 1);
}

/// An operator can cut off the damaged last commit, and nothing else.
#[test]
fn damaged_end_can_be_cut_off() {
    let image = image_with_large_last(14);
    drop(open(&image.disk).expect("it opens"));
    let last = image.frames.last().expect("there are frames");
    let (path, middle) = (segment_path(last), &image.frames[image.frames.len() / 2]);
    let start = usize::try_from(last.offset).expect("small");
    let before = &image.history.states[image.history.states.len() - 2];
    let flip = |data: &mut Vec<u8>| data[start + 100] ^= 1;
    let lose = |data: &mut Vec<u8>| data[start..].fill(0);
    let shorten = |data: &mut Vec<u8>| data.truncate(start + 100);
    for damage in [&flip as &dyn Fn(&mut Vec<u8>), &lose, &shorten] {
        let disk = image.disk.copy();
        disk.tamper(&path, damage);
        let damaged = disk.content(&path)[start..].to_vec();
        assert!(open(&disk).is_err());
        let cut = EmbeddedStore::cut_tail(DIR, &disk, "no backup").expect("it is the end");
        assert_eq!(cut.sequence, last.sequence);
        // A segment without frames looks like one that was created in advance.
        let is_emptied = last.offset == 64 && damaged.iter().all(|&byte| byte == 0);
        assert!((&cut.segment, cut.offset) == (&path, last.offset) || is_emptied, "{cut:?}");
        assert!(damaged.starts_with(&disk.content(&cut.kept)));
        let reason = String::from_utf8(disk.content(&cut.kept.with_extension("txt"))).expect("text");
        assert!(reason.starts_with("no backup\n"), "{reason}");
        assert_eq!(inspect(&disk).0.problems, Vec::<String>::new());
        for _ in 0..2 {
            let store = Store::new(open(&disk).expect("it opens again"));
            assert!(&common::read_rows(&store).expect("consistent") == before);
            drop(store);
            disk.restart();
        }
    }
    // A file that lacks only zeros has lost nothing.
    let disk = image.disk.copy();
    disk.tamper(&path, |data| data.truncate(data.len() - 100));
    assert!(open(&disk).is_err());
    let cut = EmbeddedStore::cut_tail(DIR, &disk, "no backup").expect("it is the end");
    assert_eq!((cut.sequence, disk.content(&cut.kept).len()), (last.sequence + 1, 0));
    let store = Store::new(open(&disk).expect("it opens again"));
    assert!(&common::read_rows(&store).expect("consistent") == image.history.states.last().expect("some"));
    let disk = image.disk.copy();
    disk.tamper(&segment_path(middle), |data| {
        data[usize::try_from(middle.offset).expect("small") + 60] ^= 1;
    });
    let refused = EmbeddedStore::cut_tail(DIR, &disk, "no backup");
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
    assert!(!disk.files().iter().any(|file| file.extension().is_some_and(|e| e == "bin")));
}

/// For any damage, a store opens if and only if verification calls it sound.
#[test]
fn verification_agrees_with_opening() {
    let images = [image(21, 30, false), image(22, 30, true), image_with_large_last(23)];
    let mut random = Random(24);
    let (mut refused, mut sound) = (0, 0);
    for n in 0..1500_usize * usize::try_from(common::soak_factor()).expect("small") {
        let image = &images[n % images.len()];
        let disk = image.disk.copy();
        let files: Vec<PathBuf> = disk.files().into_iter().filter(|f| !f.ends_with("MANIFEST")).collect();
        let file = &files[usize::try_from(random.below(files.len() as u64)).expect("few")];
        let length = disk.content(file).len() as u64;
        if length == 0 {
            continue;
        }
        let at = usize::try_from(random.below(length)).expect("small");
        let sector = at / 512 * 512;
        let kind = random.below(6);
        disk.tamper(file, |data| {
            let sector_end = data.len().min(sector + 512);
            match kind {
                0 => data[at] ^= 1 << (n % 8),
                1 => data.truncate(at),
                2 => data[sector..sector_end].fill(0),
                3 => data[at..].fill(0),
                4 => data[sector..].fill(0),
                _ => data[at..sector_end].fill(0xa5),
            }
        });
        let (report, _) = inspect(&disk);
        match open(&disk) {
            Err(error) => {
                assert!(!report.problems.is_empty(), "called sound, but: {error}");
                refused += 1;
            }
            Ok(_) => sound += u32::from(report.problems.is_empty()),
        }
    }
    assert!(refused > 300 && sound > 100, "{refused} refused, {sound} sound");
}

/// A store in the previous format opens, works, and has the current format afterwards.
#[test]
fn stores_of_format_1_are_read() {
    let mut history = History::new();
    let mut random = Random(1);
    for _ in 0..24 {
        let mut rows = history.states.last().expect("never empty").clone();
        random_changes(&mut random, &mut rows);
        history.states.push(rows);
    }
    let fixture = |without_checkpoint: bool| {
        let disk = SimDisk::new(1);
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1");
        for entry in std::fs::read_dir(directory).expect("it is there") {
            let entry = entry.expect("it is readable");
            let path = Path::new(DIR).join(entry.file_name());
            if !(without_checkpoint && path.ends_with("checkpoint.idx")) {
                let content = std::fs::read(entry.path()).expect("it is readable");
                batzen_store::embedded::Disk::create(&disk, &path).expect("there is space");
                disk.tamper(&path, |data| *data = content);
            }
        }
        disk
    };
    for without_checkpoint in [false, true] {
        let disk = fixture(without_checkpoint);
        let (report, frames) = inspect(&disk);
        assert_eq!((report.problems, frames.len() >= 24), (vec![], true));
        let mut store = open(&disk).expect("it opens");
        let mut history = History { states: history.states.clone(), acknowledged: 24 };
        common::run(&store, &mut Random(5), &mut history, 40).expect("the scan continues");
        for _ in 0..2 {
            drop(store);
            disk.restart();
            store = open(&disk).expect("it opens");
        }
        let at = history.check(&Store::new(store)).expect("nothing is lost");
        assert!(history.states[at] == history.states[history.acknowledged]);
        assert!(disk.content(&Path::new(DIR).join("MANIFEST")).starts_with(b"batzen-store 4"));
        let (report, _) = inspect(&disk);
        assert_eq!(report.problems, Vec::<String>::new());
    }
    // A flipped bit in its last frame is not an interrupted write, either.
    let disk = fixture(true);
    let (_, frames) = inspect(&disk);
    let last = frames.last().expect("there are frames");
    let damaged = disk.copy();
    let at = usize::try_from(last.offset + last.bytes / 2).expect("small");
    damaged.tamper(&segment_path(last), |data| data[at] ^= 1);
    assert!(matches!(open(&damaged), Err(StoreError::Corrupt { .. })));
    let start = usize::try_from(last.offset).expect("small");
    disk.tamper(&segment_path(last), |data| data[start..].fill(0));
    drop(open(&disk).expect("nothing of it was written"));
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
fn every_flipped_bit_is_harmless_or_refused() {
    let image = image(2, 30, false);
    let complete = image.history.states.last().expect("never empty");
    let mut random = Random(7);
    let (mut refused, mut unharmed) = (0, 0);
    for path in image.disk.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "seg")) {
        for at in 0..image.disk.content(&path).len() {
            let bit = 1 << random.below(8);
            match reopen(&image, |disk| disk.tamper(&path, |data| data[at] ^= bit))
                .expect("only correct rows are served")
            {
                Ok(commit) => {
                    let lost = image.history.states[commit] != *complete;
                    assert!(!lost, "byte {at} of {} flipped: commits lost unnoticed", path.display());
                    unharmed += 1;
                }
                Err(StoreError::Corrupt { file, offset, .. }) => {
                    assert_eq!(file, path);
                    assert!(offset <= at as u64, "the damage at {at} is reported at {offset}");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 1000 && unharmed > 100, "{refused} refused, {unharmed} unharmed");
}

/// Opening does not read the journal before a checkpoint; each row is verified when it is read.
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

/// A checkpoint contains the length of the journal, so the loss of the last frame is not a torn tail.
#[test]
fn checkpoint_reveals_a_lost_tail() {
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
        let at_commit = flipped.expect("only correct rows are served").expect("the journal has everything");
        assert_eq!(&image.history.states[at_commit], complete, "byte {at} flipped");
    }
    for cut in 0..length {
        let cut = reopen(&image, |disk| disk.tamper(&path, |data| data.truncate(cut)));
        let at_commit = cut.expect("only correct rows are served").expect("the journal has everything");
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

/// Misdirected writes: a genuine segment under another name, a genuine frame in another place.
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

/// A genuine record in the place of another one, before a checkpoint, so that opening does not read it. The
/// store must not behave as if the lost row had never existed.
#[test]
fn misplaced_record_is_found_when_read() {
    use batzen_store::ChangeSet;
    use batzen_store::conformance::{ItemKey, key, row};
    let disk = SimDisk::new(15);
    let store = open(&disk).expect("it opens");
    let keys: Vec<ItemKey> = (0..8).map(|item| key(1, item)).collect();
    for key in &keys {
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(key, &row("label", Some(1)));
        assert_eq!(store.commit(&changes).expect("it works"), batzen_store::CommitOutcome::Committed);
    }
    store.checkpoint().expect("it works");
    drop(store);
    let (_, frames) = inspect(&disk);
    assert_eq!(frames.len(), keys.len());
    let place = |frame: &FrameInfo| {
        let start = usize::try_from(frame.offset).expect("small") + 48;
        start..start + usize::try_from(frame.records[0].bytes).expect("small")
    };
    for (n, frame) in frames.iter().enumerate() {
        let other = &frames[(n + 3) % frames.len()];
        let record = disk.content(&segment_path(other))[place(other)].to_vec();
        let disk = disk.copy();
        disk.tamper(&segment_path(frame), |data| data[place(frame)].copy_from_slice(&record));
        let store = Store::new(open(&disk).expect("opening does not read it"));
        let is_found = |error: StoreError| matches!(error, StoreError::Corrupt { .. });
        assert!(is_found(store.get::<Items>(&keys[n]).expect_err("not found")));
        assert!(is_found(store.all::<Items>().expect_err("a row twice")));
        let label = "label".to_owned();
        assert!(is_found(store.lookup::<Items>(Items::BY_LABEL, &label).expect_err("a row twice")));
        let mut changes = ChangeSet::new();
        changes.insert::<Items>(&keys[n], &row("again", None));
        assert!(is_found(store.commit(&changes).expect_err("it is there already")));
    }
}

/// A commit in a checkpoint was not interrupted, even if no complete frame follows it.
#[test]
fn verification_compares_with_the_checkpoint() {
    let image = image_with_large_last(16);
    let last = image.frames.last().expect("there are frames");
    let before = inspect(&image.disk).0.problems;
    open(&image.disk).expect("it opens").checkpoint().expect("it works");
    image.disk.restart();
    batzen_store::embedded::Disk::remove(&image.disk, &Path::new(DIR).join("tail.mark"))
        .expect("it is there");
    let start = usize::try_from(last.offset).expect("small");
    for lost in [start, start + 512] {
        let disk = image.disk.copy();
        disk.tamper(&segment_path(last), |data| data[lost..].fill(0));
        let (report, _) = inspect(&disk);
        assert_eq!((before.len(), report.problems.len(), report.torn_tail), (0, 1, None), "{lost}");
    }
}

/// Bytes that clients store are never mistaken for frames, even if they are frames of another store.
#[test]
fn stored_frames_are_only_data() {
    use batzen_store::conformance::{ItemRow, key};
    use batzen_store::{ChangeSet, List};
    let image = image(9, 10, false);
    let foreign = image.disk.content(&segment_path(&image.frames[0]));
    let disk = SimDisk::new(9);
    // Another store has another key.
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
    // The commit is torn: the frames in its data are not mistaken for later commits.
    disk.tamper(&segment_path(&frames[0]), |data| data[512..1024].fill(0));
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
    // Damage to the last frame, followed by an interrupted commit.
    let image = image_with_large_last(10);
    let last = image.frames.last().expect("there are frames");
    let start = usize::try_from(last.offset).expect("small");
    let disk = image.disk.copy();
    disk.tamper(&segment_path(last), |data| data[start + 60] ^= 1);
    let (report, _) = inspect(&disk);
    assert_eq!((report.torn_tail, report.problems.len()), (None, 1), "{:?}", report.problems);
    let disk = image.disk.copy();
    disk.tamper(&segment_path(last), |data| data[start + 512..].fill(0));
    let (report, _) = inspect(&disk);
    assert_eq!(report.torn_tail, Some((segment_path(last), last.offset)));
    assert_eq!(report.problems, Vec::<String>::new());
}

/// A damaged or missing index file is rebuilt from the journal, or reading it reports the damage: a store never
/// serves anything wrong because of it, and verification notices it.
#[test]
fn damaged_index_files_are_rebuilt_or_reported() {
    let image = image(17, 40, true);
    let complete = image.history.states.last().expect("never empty");
    let runs: Vec<PathBuf> =
        image.disk.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "run")).collect();
    assert!(!runs.is_empty());
    let (mut rebuilt, mut reported) = (0, 0);
    for run in &runs {
        let length = image.disk.content(run).len();
        for at in 0..length {
            let disk = image.disk.copy();
            let flip = |disk: &SimDisk| disk.tamper(run, |data| data[at] ^= 1 << (at % 8));
            flip(&disk);
            assert!(!inspect(&disk).0.problems.is_empty(), "byte {at} is called sound");
            match reopen(&image, flip) {
                Ok(Ok(commit)) => {
                    assert_eq!(&image.history.states[commit], complete, "byte {at}");
                    rebuilt += 1;
                }
                Ok(Err(error)) => assert!(matches!(error, StoreError::Corrupt { .. }), "byte {at}: {error}"),
                Err(error) => {
                    assert!(error.contains("remove checkpoint.idx"), "byte {at}: {error}");
                    reported += 1;
                }
            }
        }
        let missing =
            reopen(&image, |disk| batzen_store::embedded::Disk::remove(disk, run).expect("it is there"));
        let commit = missing.expect("only correct rows are served").expect("it is rebuilt");
        assert_eq!(&image.history.states[commit], complete);
    }
    assert!(rebuilt > 100 && reported > 100, "{rebuilt} rebuilt, {reported} reported");
}

crate::repeat_without_index_memory!(
    damaged_index_files_are_rebuilt_or_reported,
    verification_agrees_with_opening,
    damaged_checkpoints_are_rebuilt,
    misplaced_record_is_found_when_read,
    verification_compares_with_the_checkpoint,
    verification_names_all_damage,
);
