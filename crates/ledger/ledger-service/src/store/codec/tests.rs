use super::*;

fn identities() -> Vec<Identity> {
    let account = |id| Account { id, ledger: 1, code: 1, flags: AccountFlags::HISTORY, ..Account::default() };
    [10, 11, 12].map(|id| Identity::of(&account(id))).to_vec()
}

fn round_trip(first: u64, records: &[LogRecord]) -> usize {
    let mut bytes = Vec::new();
    encode(first, records, &mut bytes);
    let mut decoded = Vec::new();
    decode(first, &bytes, &identities(), |record| decoded.push(record)).expect("it decodes");
    assert_eq!(decoded, records);
    // Truncated bytes are rejected, or yield fewer records.
    for end in 0..bytes.len() {
        let mut count = 0;
        if decode(first, &bytes[..end], &identities(), |_| count += 1).is_ok() {
            assert!(count < records.len());
        }
    }
    // Changed bytes are rejected or decode to something, but never panic.
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let _ = decode(first, &damaged, &identities(), |_| {});
        }
    }
    bytes.len()
}

fn movements() -> Vec<LogRecord> {
    let side = |account, id: u128, closed| Side {
        account,
        flags: if closed { AccountFlags::HISTORY | AccountFlags::CLOSED } else { AccountFlags::HISTORY },
        balances: Balances {
            debits_pending: 0,
            debits_posted: id,
            credits_pending: 7,
            credits_posted: u128::MAX,
        },
        previous: if id == 1 { 0 } else { 100 },
    };
    let transfer = |id: u128, flags| Transfer {
        id,
        debit_account_id: 10,
        credit_account_id: 12,
        amount: u128::MAX - id,
        ledger: 1,
        code: 1,
        flags,
        timestamp: 1000 + u64::try_from(id % 1000).expect("small"),
        ..Transfer::default()
    };
    let movement = |transfer: Transfer| {
        LogRecord::Movement(Movement {
            kind: kind_of(transfer.flags),
            timestamp: transfer.timestamp,
            transfer,
            debit: side(0, transfer.id, false),
            credit: side(2, 5, transfer.flags.contains(TransferFlags::CLOSING_CREDIT)),
        })
    };
    let pending = Transfer {
        timeout: 60,
        user_data_128: u128::MAX,
        user_data_64: u64::MAX,
        user_data_32: u32::MAX,
        ..transfer(2, TransferFlags::PENDING | TransferFlags::CLOSING_CREDIT)
    };
    let LogRecord::Movement(reserved) = movement(pending) else { unreachable!("it is a movement") };
    let expired = Movement { kind: ChangeKind::TwoPhaseExpired, timestamp: 1 << 62, ..reserved };
    let post =
        |id: u128, pending_id| Transfer { pending_id, ..transfer(id, TransferFlags::POST_PENDING_TRANSFER) };
    vec![
        movement(transfer(1, TransferFlags::NONE)),
        movement(pending),
        movement(post(3, 2)),
        movement(post(u128::MAX - 1, 1 << 90)),
        // No ledger writes this record, but the codec does not depend on that.
        movement(post(u128::MAX - 2, 0)),
        movement(Transfer {
            pending_id: 9,
            ..transfer(5, TransferFlags::VOID_PENDING_TRANSFER | TransferFlags::LINKED)
        }),
        LogRecord::Burnt { id: 6, timestamp: 1 },
        LogRecord::Burnt { id: 1 << 100, timestamp: u64::MAX >> 1 },
        movement(Transfer {
            ledger: u32::MAX,
            code: u16::MAX,
            ..transfer(7, TransferFlags::BALANCING_DEBIT)
        }),
        LogRecord::Movement(expired),
    ]
}

#[test]
fn records_are_coded_and_decoded() {
    round_trip(200, &movements());
    let account = |id, user_data_64| {
        LogRecord::Account(Account {
            id,
            user_data_128: 1 << 127,
            user_data_64,
            user_data_32: 4,
            ledger: u32::MAX,
            code: 9,
            flags: AccountFlags::IMPORTED,
            timestamp: 77,
            ..Account::default()
        })
    };
    let bytes = round_trip(0, &[account(1, 0), account(u128::MAX - 1, 5), account(3, 0)]);
    assert!(bytes < 3 * 50, "{bytes} bytes");
}

#[test]
fn usual_transfers_are_small() {
    let side = |account, previous| Side {
        account,
        flags: AccountFlags::HISTORY,
        balances: Balances { debits_posted: 1_000_000, credits_posted: 2_000_000, ..Balances::default() },
        previous,
    };
    let record = |n: u64| {
        let timestamp = 1_700_000_000_000_000_000 + n;
        let transfer = Transfer {
            id: (1 << 100) + u128::from(n) * 0x1234_5678_9abc_def0_1122,
            debit_account_id: 10,
            credit_account_id: 12,
            amount: 1000,
            ledger: 1,
            code: 1,
            timestamp,
            ..Transfer::default()
        };
        LogRecord::Movement(Movement {
            kind: ChangeKind::SinglePhase,
            timestamp,
            transfer,
            debit: side(0, n + 900_000),
            credit: side(2, n + 800_000),
        })
    };
    let records: Vec<LogRecord> = (0..64).map(record).collect();
    let bytes = round_trip(1_000_000, &records);
    assert!(bytes / 64 <= 50, "{} bytes a transfer", bytes / 64);
}
