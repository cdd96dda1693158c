#![no_main]
//! A row of the ledger's log: whatever the bytes, decoding ends without a panic; what decodes is coded and
//! decoded again to the same records.

use batzen_ledger::{Account, AccountFlags};
use batzen_ledger_service::store::codec::{BLOCK_RECORDS_MAX, Identity, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|block: &[u8]| {
    let identity =
        |id| Identity::of(&Account { id, ledger: 1, code: 1, flags: AccountFlags::HISTORY, ..Account::default() });
    let identities = [identity(1), identity(2), identity(3)];
    let mut records = Vec::new();
    if decode(1000, block, &identities, |record| records.push(record)).is_err() {
        return;
    }
    for part in records.chunks(BLOCK_RECORDS_MAX).take(1) {
        let mut coded = Vec::new();
        encode(1000, part, &mut coded);
        let mut again = Vec::new();
        decode(1000, &coded, &identities, |record| again.push(record)).expect("what was coded decodes");
        assert_eq!(part, again);
    }
});
