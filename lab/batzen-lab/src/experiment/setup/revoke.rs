//! Revocations of denominations, with the exchange's offline tool.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use batzen_crypto::HashCode;
use batzen_protocol::api::exchange::KeysResponse;

use super::{PATIENCE, SetUp, call};
use crate::bench::load::wire;
use crate::bench::scenarios::world::now;
use crate::experiment::placement::Instance;
use crate::experiment::topology::Role;

/// The denominations to revoke.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::experiment) enum Revoked {
    /// The one with this hash.
    One(HashCode),
    /// A share of those on offer, at least one: those with the largest coins.
    Share(f64),
}

impl Revoked {
    /// The hashes to revoke of those on offer, which are listed from the largest coin to the smallest.
    fn choose(self, offered: &[HashCode]) -> anyhow::Result<Vec<HashCode>> {
        match self {
            Self::One(hash) => {
                ensure!(offered.contains(&hash), "the exchange offers no denomination {hash}");
                Ok(vec![hash])
            }
            Self::Share(share) => {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a share of a length"
                )]
                let count = (offered.len() as f64 * share).ceil() as usize;
                ensure!(!offered.is_empty(), "the exchange offers no denominations");
                Ok(offered[..count.clamp(1, offered.len())].to_vec())
            }
        }
    }
}

/// The denominations that an exchange offers now, from the largest coin to the smallest.
fn offered(exchange: &Instance) -> anyhow::Result<Vec<HashCode>> {
    let keys: KeysResponse = serde_json::from_slice(&call(&exchange.authority(), &wire::get("/keys"))?)?;
    let mut denoms = keys.denoms;
    denoms.retain(|denom| denom.stamp_start <= now() && now() < denom.stamp_expire_withdraw);
    let mut hashes: Vec<_> =
        denoms.iter().map(|denom| (denom.value.money, denom.denom_pub.h_denom_pub())).collect();
    hashes.sort_unstable_by(|one, two| two.cmp(one));
    Ok(hashes.into_iter().map(|(_, hash)| hash).collect())
}

impl SetUp<'_> {
    /// Runs steps of the offline tool where the master key is: on this machine, or beside an exchange that sets itself up.
    fn operate(&mut self, exchange: &Instance, steps: &[&str]) -> anyhow::Result<()> {
        if !self.experiment.of(Role::Signer).is_empty() {
            return self.offline(steps).map(drop);
        }
        let conf = self.dir(exchange)?.join("conf").to_string_lossy().into_owned();
        let words = [&["exchange", "offline", "-c", &conf], steps].concat();
        self.run(exchange, &words).map(drop)
    }

    /// Revokes denominations, and waits until others have taken their place. Returns how many were revoked.
    ///
    /// # Errors
    /// When there is no such denomination, or a service refuses or does not go on.
    pub(in crate::experiment) fn revoke(&mut self, what: Revoked) -> anyhow::Result<usize> {
        let first = self.experiment.of(Role::Exchange).into_iter().next();
        let first = first.context("the topology has no exchange")?;
        let before = offered(&first)?;
        let revoked: Vec<String> = what.choose(&before)?.iter().map(HashCode::to_string).collect();
        // Recorded first: what happens to the wallets would have no reason otherwise.
        self.experiment.event("revoke", &format!("{} of {} denominations", revoked.len(), before.len()))?;
        let steps = revoked.iter().flat_map(|hash| ["revoke-denomination", hash]).chain(["upload"]);
        self.operate(&first, &steps.collect::<Vec<_>>())?;
        let deadline = Instant::now() + PATIENCE;
        let mut late = "no denominations take the place of those revoked".to_owned();
        loop {
            // Keys are made in their own time, and meanwhile an exchange without any refuses to say what is to be signed.
            let signed = self.operate(&first, &["download", "sign", "upload"]);
            match signed.and_then(|()| offered(&first)) {
                Ok(now) if now.len() >= before.len() => break,
                Ok(_) => {}
                Err(error) => late = format!("{error:#}"),
            }
            self.go_on(deadline, &late)?;
        }
        Ok(revoked.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_largest_coins_and_never_nothing() {
        let offered: Vec<HashCode> = (1..=4).map(|byte| HashCode::from_bytes([byte; 64])).collect();
        let chosen = |what: Revoked| what.choose(&offered).map(|chosen| chosen.len());
        assert_eq!(Revoked::Share(0.5).choose(&offered).unwrap(), offered[..2]);
        assert_eq!((chosen(Revoked::Share(1e-9)).unwrap(), chosen(Revoked::Share(1.0)).unwrap()), (1, 4));
        assert_eq!(Revoked::One(offered[3]).choose(&offered).unwrap(), offered[3..]);
        let other = HashCode::from_bytes([9; 64]);
        assert!(
            Revoked::One(other).choose(&offered).unwrap_err().to_string().contains("offers no denomination")
        );
        assert!(Revoked::Share(1.0).choose(&[]).is_err());
    }
}
