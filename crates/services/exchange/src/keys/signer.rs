//! Finds the private key that signs for a denomination.

use std::sync::Arc;

use batzen_crypto::CsNonce;
use batzen_crypto::cs::CsOperation;
use batzen_crypto::denom::BlindedPlanchet;
use batzen_signer::{BlindOrder, DenomHandle, NotSigned, ValuesOrder};
use batzen_tables::exchange::DenomSerial;

use super::state::Denom;

/// Finds the keys of the denominations of one snapshot. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Signer {
    denoms: Arc<[Arc<Denom>]>,
}

impl Signer {
    pub(super) fn new(denoms: Vec<Arc<Denom>>) -> Self {
        Self { denoms: denoms.into() }
    }

    fn key(&self, serial: DenomSerial) -> Result<DenomHandle, NotSigned> {
        let denom = (serial.0 as usize).checked_sub(1).and_then(|index| self.denoms.get(index));
        denom.and_then(|denom| denom.key().cloned()).ok_or(NotSigned::KeyUnavailable)
    }

    /// A planchet to be signed with the key of its denomination.
    ///
    /// The caller has checked windows and revocation. By the rules' nonce locks, it makes sure that no two
    /// Clause Blind Schnorr signatures with different challenges are issued for one nonce.
    ///
    /// # Errors
    /// When no process has the private key.
    pub fn order(
        &self,
        serial: DenomSerial,
        planchet: BlindedPlanchet,
        operation: CsOperation,
    ) -> Result<BlindOrder, NotSigned> {
        Ok(BlindOrder { key: self.key(serial)?, planchet, operation })
    }

    /// The values that a wallet needs before it can blind a coin: the R values of a Clause Blind Schnorr
    /// denomination, nothing for RSA. It has no side effects and can be asked any number of times.
    ///
    /// # Errors
    /// When no process has the private key.
    pub fn order_values(
        &self,
        serial: DenomSerial,
        nonce: CsNonce,
        operation: CsOperation,
    ) -> Result<ValuesOrder, NotSigned> {
        Ok(ValuesOrder { key: self.key(serial)?, nonce, operation })
    }
}
