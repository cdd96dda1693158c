#![no_main]
//! Batches of arbitrary records: no invariant breaks, the sums agree, and the log leads to the same state
//! again.

use batzen_ledger::machine::{Machine, MemoryHistory};
use batzen_ledger::record::RECORD_BYTES;
use batzen_ledger::{Account, Transfer};
use libfuzzer_sys::fuzz_target;

/// Numbers that meet: ids, accounts and amounts are few.
fn small(transfer: &mut Transfer) {
    let few = |value: &mut u128| *value = if *value > u128::MAX - 3 { *value } else { *value % 8 };
    few(&mut transfer.id);
    few(&mut transfer.debit_account_id);
    few(&mut transfer.credit_account_id);
    few(&mut transfer.pending_id);
    transfer.ledger %= 3;
    transfer.code %= 2;
    transfer.timeout %= 3;
    transfer.timestamp %= 2_000;
}

fuzz_target!(|bytes: &[u8]| {
    let mut machine = Machine::new(&[0; 16]);
    let mut history = MemoryHistory::default();
    let mut now = 1_000;
    for chunk in bytes.chunks_exact(RECORD_BYTES * 4) {
        let records = chunk.chunks_exact(RECORD_BYTES).map(|r| r.try_into().expect("chunks are records"));
        now += u64::from(chunk[0]) * 100_000_000;
        if chunk[1] % 4 == 0 {
            let small = |mut account: Account| {
                account.id %= 8;
                account.ledger %= 3;
                account.flags.0 %= 64;
                account
            };
            let events: Vec<Account> = records.map(Account::from_bytes).map(small).collect();
            let timestamp = machine.operation_timestamp(now, events.len());
            let Ok(_) = machine.create_accounts(&history, &events, timestamp);
        } else {
            let mut events: Vec<Transfer> = records.map(Transfer::from_bytes).collect();
            events.iter_mut().for_each(small);
            let timestamp = machine.operation_timestamp(now, events.len());
            let Ok(_) = machine.create_transfers(&history, &events, timestamp);
        }
        if machine.is_pulse_due(now) {
            let timestamp = machine.operation_timestamp(now, batzen_ledger::BATCH_EVENTS_MAX);
            machine.pulse(timestamp);
        }
        history.extend(machine.take_records());
        let mark = machine.mark();
        machine.settle(&mark);
    }
    machine.check().expect("the invariants hold");
    let mut again = Machine::new(&[1; 16]);
    for record in history.records() {
        let Ok(result) = again.replay(&history, record);
        result.expect("the rules decide the same again");
    }
    assert_eq!(again.digest(), machine.digest());
});
