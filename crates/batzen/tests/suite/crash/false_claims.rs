//! False claims and removed commits: the proof must find them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_store::Table;
use batzen_store::embedded::{EmbeddedStore, FrameKind, RealDisk, RecordInfo};
use batzen_tables::exchange::{Coins, Melts, Purses, Refunds, Reveals, Withdrawals};

use crate::crash::coins::Coin;
use crate::crash::customers::Effect;
use crate::crash::facts::Claims;
use crate::crash::log::{Entry, Kind};

/// Claims that are false, and a part of the message that must report them.
pub(crate) struct FalseClaims<'a> {
    pub what: &'static str,
    pub finding: &'static str,
    pub claims: Claims<'a>,
}

/// Claims with one extra operation of each kind that was never executed though supposedly acknowledged; and
/// claims in which a coin was accepted twice.
pub(crate) fn false_claims<'a>(claims: &Claims<'a>) -> Vec<FalseClaims<'a>> {
    let with = |what, finding, entry: Entry<Effect>| {
        let mut claims = claims.clone();
        claims.entries.push(entry);
        FalseClaims { what, finding, claims }
    };
    let find = |kind, fits: &dyn Fn(&Effect) -> bool| {
        let mut acknowledged = claims.entries.iter().filter(|entry| entry.is_acknowledged());
        let found = acknowledged.find(|entry| entry.request.kind == kind && fits(&entry.effect));
        found.unwrap_or_else(|| panic!("there is no {kind:?}")).clone()
    };
    let mut planted = Vec::new();
    for (what, kind) in [
        ("a withdrawal that never happened", Kind::Withdraw),
        ("a deposit that never happened", Kind::Deposit),
        ("a melt that never happened", Kind::Melt),
        ("a reveal that never happened", Kind::Reveal),
        ("a refund that never happened", Kind::Refund),
        ("a purse that never was", Kind::PurseCreate),
        ("a merge that never happened", Kind::PurseMerge),
    ] {
        let mut entry = find(kind, &|_| true);
        match &mut entry.effect {
            Effect::Withdraw { coins, .. } => coins[0].0 = HashCode::random(),
            Effect::Deposit { contract, .. } | Effect::Refund { contract, .. } => {
                *contract = HashCode::random();
            }
            Effect::Melt { rc, .. } | Effect::Reveal { rc, .. } => *rc = HashCode::random(),
            Effect::PurseCreate { purse, .. } | Effect::PurseMerge { purse, .. } => {
                *purse = EddsaPrivateKey::generate().public_key();
            }
            Effect::Nothing => unreachable!("these kinds move money"),
        }
        planted.push(with(what, " lost: no row", entry));
    }
    let twice = find(Kind::Deposit, &|effect| spends_whole_coin(effect, claims.coins));
    planted.push(with("a coin that was accepted twice", " was accepted for ", twice));
    planted
}

/// Returns whether an operation spends a coin for good, so that it cannot be spent again.
pub(crate) fn spends_whole_coin(effect: &Effect, known: &HashMap<EddsaPublicKey, Arc<Coin>>) -> bool {
    match effect {
        Effect::Deposit { coins, is_refundable: false, .. } => {
            let (coin, amount) = &coins[0];
            *amount == known[coin].denom.value
        }
        _ => false,
    }
}

/// An entry whose answer differs from the real one.
pub(crate) fn changed_answer(claims: &Claims<'_>) -> Entry<Effect> {
    let is_melt = |entry: &&Entry<Effect>| entry.request.kind == Kind::Melt && entry.is_acknowledged();
    let mut entry = claims.entries.iter().find(is_melt).expect("there is a melt").clone();
    let body = &mut entry.answer.as_mut().expect("it was acknowledged").body;
    let index = body["noreveal_index"].as_u64().expect("a number");
    body["noreveal_index"] = ((index + 1) % 3).into();
    entry
}

/// Copies a store and cuts off its journal before the last acknowledged commit. Returns how many commits that
/// removes.
pub(crate) fn cut_off(store: &Path, copy: &Path) -> usize {
    std::fs::create_dir(copy).unwrap();
    for file in std::fs::read_dir(store).unwrap().map(Result::unwrap) {
        // Either file would reveal the cut.
        let guards = ["checkpoint.idx", "tail.mark"];
        if file.file_type().unwrap().is_file() && !guards.iter().any(|name| file.file_name() == *name) {
            std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
    }
    // The workers also write to deposits, but not to coins.
    let acknowledged_tables =
        [Withdrawals::DEF.id, Coins::DEF.id, Refunds::DEF.id, Melts::DEF.id, Reveals::DEF.id, Purses::DEF.id];
    let mut frames = Vec::new();
    let report = EmbeddedStore::inspect(copy, &RealDisk, &mut |frame| frames.push(frame)).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let is_acknowledged =
        |record: &RecordInfo| acknowledged_tables.contains(&record.table) && !record.is_deletion;
    let last = frames
        .iter()
        .rposition(|frame| frame.kind == FrameKind::Commit && frame.records.iter().any(is_acknowledged))
        .expect("there are commits");
    let (segment, offset) = (frames[last].segment, frames[last].offset);
    assert_eq!(segment, frames.last().unwrap().segment, "the commit is in a closed segment");
    let file = &report.segments.iter().find(|report| report.number == segment).unwrap().file;
    let mut bytes = std::fs::read(file).unwrap();
    bytes[usize::try_from(offset).unwrap()..].fill(0);
    std::fs::write(file, bytes).unwrap();
    frames.len() - last
}
