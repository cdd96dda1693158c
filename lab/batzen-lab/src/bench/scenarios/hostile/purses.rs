//! Attacks with purses, beside purses that are created and merged.

use batzen_protocol::Duration;

use super::arena::{Arena, HttpArena, Setting};
use super::attack::{Act, always, each};
use crate::bench::error::Result;
use crate::bench::load::measure::Stage;
use crate::bench::load::random::Seed;
use crate::bench::load::wire;
use crate::bench::scenarios::p2p::{EmptyPurses, P2p};
use crate::bench::scenarios::world::call;

/// Life of a purse: just below the longest that an exchange accepts by default.
const LIFE: Duration = Duration::from_days(365);
/// The largest contract.
const CONTRACT_BYTES: usize = 4 << 10;

pub(super) fn start(setting: &Setting<'_>) -> Result<Box<dyn Arena>> {
    let world = setting.world(false, String::new())?;
    let place = (world.exchange_pids()[0], world.exchange_address);
    let seed = Seed::new(setting.load.seed).part("hostile");
    let load = P2p::of_one_coin(setting.cipher, setting.load.clone(), setting.run.clone());
    Ok(Box::new(HttpArena::new(setting, world, load, place, None, |stage| acts(&seed, stage))?))
}

fn acts(seed: &Seed, stage: &mut Stage<'_>) -> Result<Vec<(&'static str, Act)>> {
    let purses = EmptyPurses::new(seed, stage.world.base_url(), LIFE, CONTRACT_BYTES);
    call(stage.world.exchange_address, "ask for a purse", &purses.ask(u64::MAX)?)?;
    let poll = wire::get(&format!("/purses/{}/deposit?timeout_ms=120000", purses.public(u64::MAX)));
    let merge = purses.merge(u64::MAX)?;
    // What can be asked for once can be asked for with every number.
    let ask = move |number| purses.ask(number).unwrap_or_default();
    Ok(vec![
        ("free-purses", Act::Repeats(each(ask))),
        ("purse-polls", Act::Repeats(always(poll))),
        ("refused-merges", Act::Repeats(always(merge))),
    ])
}
