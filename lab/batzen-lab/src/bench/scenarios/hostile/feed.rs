//! Attacks on the exchange's stream to auditors, beside auditors that connect.

use std::sync::Arc;
use std::time::Duration;

use batzen_signer::address::Address;
use batzen_signer::channel::{Connect, load_key};

use super::arena::{Arena, Call, Pace, Setting, Target, call_at};
use super::attack::{Act, always};
use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::generator::LoadOutcome;
use crate::bench::load::progress::Progress;
use crate::bench::scenarios::world::World;

/// Time of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The beginning of a record of TLS with a client's hello.
const HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

struct Feed {
    world: World,
    target: Target,
    pace: Pace,
    progress: Progress,
    call: Call,
}

pub(super) fn start(setting: &Setting<'_>) -> Result<Box<dyn Arena>> {
    // Its own auditor follows all the time.
    let world = setting.world(true, String::new())?;
    let missing = || BenchError::SetUp("there is no auditor".into());
    let auditor = world.auditor().ok_or_else(missing)?;
    let failed = |reason: String| BenchError::set_up("connect as an auditor", reason);
    let key = load_key(&auditor.key_file).map_err(|error| failed(error.to_string()))?;
    let exchange = auditor.feed_key.parse().map_err(|_| failed("the exchange's key is malformed".into()))?;
    let connect = Connect::new(&key, vec![exchange]).map_err(|error| failed(error.to_string()))?;
    let (address, feed) = (auditor.feed, Address::Tcp(auditor.feed.to_string()));
    let call: Call = Arc::new(move |_| {
        let (connect, feed) = (connect.clone(), feed.clone());
        Box::pin(async move {
            let channel = connect.connect(&feed, HANDSHAKE).await;
            channel.map(drop).map_err(|error| error.to_string())
        })
    });
    let acts = [
        ("silent-auditors", Act::Waits(Vec::new())),
        ("slow-handshakes", Act::Drips(vec![HELLO.into()], b"x")),
        ("junk-handshakes", Act::Leaves(always(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()))),
    ];
    let target = Target::new((world.exchange_pids()[0], address), acts);
    let (pace, progress) = (setting.pace(), setting.progress);
    Ok(Box::new(Feed { world, target, pace, progress, call }))
}

impl Arena for Feed {
    fn target(&self) -> &Target {
        &self.target
    }

    fn load(&mut self) -> Result<LoadOutcome> {
        call_at(&self.pace, 0, &self.call)
    }

    fn still_runs(&mut self) -> Result<()> {
        self.world.still_runs()
    }

    fn finish(mut self: Box<Self>) -> Result<bool> {
        let findings = self.world.auditor_catches_up()?.map_or(0, |(findings, _)| findings);
        Ok(self.world.finish(&self.progress)? == Some(true) && findings == 0)
    }
}
