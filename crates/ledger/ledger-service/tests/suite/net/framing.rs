//! Frames and records: encoded values decode to themselves, and other bytes are refused.

use batzen_ledger::{
    Account, AccountBalance, AccountFilter, AccountFlags, ChangeEvent, ChangeFilter, ChangeKind,
    CreateResult, CreateTransferStatus, QueryFilter, Transfer, TransferFlags,
};
use batzen_ledger_service::net::body::{Record, push_all, read_all, read_one, runs_alone};
use batzen_ledger_service::net::frame::{
    self, BODY_BYTES_MAX, HEADER_BYTES, Header, Hello, Kind, Parsed, Status,
};
use proptest::prelude::*;

fn account() -> impl Strategy<Value = Account> {
    any::<[u8; 128]>().prop_map(|bytes| Account::from_bytes(&bytes))
}

fn transfer() -> impl Strategy<Value = Transfer> {
    any::<[u8; 128]>().prop_map(|bytes| Transfer::from_bytes(&bytes))
}

fn round_trips<R: Record + PartialEq + std::fmt::Debug>(records: &[R]) -> Result<(), TestCaseError> {
    let mut body = Vec::new();
    push_all(&mut body, records);
    prop_assert_eq!(body.len(), records.len() * R::BYTES);
    let read = read_all::<R>(&body).unwrap();
    prop_assert_eq!(read.as_slice(), records);
    body.push(0);
    prop_assert!(read_all::<R>(&body).is_none());
    Ok(())
}

proptest! {
    #[test]
    fn frames_round_trip_in_pieces_of_any_size(
        kind in 0..Kind::ALL.len(), number: u64, body in proptest::collection::vec(any::<u8>(), 0..2000), cut: prop::sample::Index,
    ) {
        let mut bytes = Vec::new();
        frame::push(&mut bytes, Kind::ALL[kind], Status::Done, number, &body);
        let whole = Header::new(Kind::ALL[kind], Status::Done, number, &body);
        prop_assert_eq!(frame::parse(&bytes).unwrap(), Parsed::Frame(whole, body.as_slice()));
        let cut = cut.index(bytes.len());
        let Parsed::NeedsBytes(needed) = frame::parse(&bytes[..cut]).unwrap() else { panic!("a part is no frame") };
        prop_assert!(needed > cut && needed <= bytes.len());
    }

    #[test]
    fn a_flipped_bit_is_found(number: u64, body in proptest::collection::vec(any::<u8>(), 0..300), bit: prop::sample::Index) {
        let mut bytes = Vec::new();
        frame::push(&mut bytes, Kind::CreateTransfers, Status::Done, number, &body);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(frame::parse(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = frame::parse(&bytes);
        let _ = Hello::from_bytes(&bytes);
        let _ = read_all::<Account>(&bytes);
        let _ = read_all::<ChangeEvent>(&bytes);
        let _ = read_one::<AccountFilter>(&bytes);
        let _ = read_one::<QueryFilter>(&bytes);
        let _ = read_one::<ChangeFilter>(&bytes);
        let _ = runs_alone(Kind::CreateTransfers, &bytes);
    }

    #[test]
    fn records_round_trip(
        accounts in proptest::collection::vec(account(), 0..5),
        transfers in proptest::collection::vec(transfer(), 0..5),
        ids in proptest::collection::vec(any::<u128>(), 0..5),
        timestamp: u64,
        status in 0..CreateTransferStatus::ALL.len(),
    ) {
        round_trips(&accounts)?;
        round_trips(&transfers)?;
        round_trips(&ids)?;
        round_trips(&[CreateResult { timestamp, status: CreateTransferStatus::ALL[status] }])?;
        if let ([a, b, ..], [t, ..]) = (accounts.as_slice(), transfers.as_slice()) {
            let event = ChangeEvent {
                timestamp, kind: ChangeKind::TwoPhaseExpired, transfer: *t, debit_account: *a, credit_account: *b,
            };
            round_trips(&[event, event])?;
        }
    }

    #[test]
    fn filters_round_trip(
        ids: [u128; 5], numbers: [u64; 3], small: [u32; 3], code: u16, flags: [bool; 3],
    ) {
        let [debits, credits, reversed] = flags;
        let [user_data_64, timestamp_min, timestamp_max] = numbers;
        let [user_data_32, limit, ledger] = small;
        round_trips(&[AccountFilter {
            account_id: ids[0], user_data_128: ids[1], user_data_64, user_data_32, code, timestamp_min, timestamp_max,
            limit, debits, credits, reversed,
        }])?;
        round_trips(&[QueryFilter {
            user_data_128: ids[1], user_data_64, user_data_32, ledger, code, timestamp_min, timestamp_max, limit, reversed,
        }])?;
        round_trips(&[ChangeFilter { timestamp_min, timestamp_max, limit }])?;
        round_trips(&[AccountBalance {
            timestamp: timestamp_min, debits_pending: ids[0], debits_posted: ids[1], credits_pending: ids[2], credits_posted: ids[3],
        }])?;
    }

    #[test]
    fn headers_round_trip(number: u64, size in 0..4096_usize, status in 0..7_u16) {
        let header = Header::new(Kind::Ping, Status::from_number(status).unwrap(), number, &vec![7; size]);
        prop_assert_eq!(Header::from_bytes(&header.to_bytes()).unwrap(), header);
    }
}

#[test]
fn an_oversized_body_is_distinguished_from_damage() {
    let mut header = Header::new(Kind::CreateTransfers, Status::Done, 7, &[]);
    header.size = u32::try_from(BODY_BYTES_MAX + 1).unwrap();
    assert_eq!(frame::parse(&header.to_bytes()).unwrap(), Parsed::TooLarge(header));
    header.size -= 1;
    assert_eq!(frame::parse(&header.to_bytes()).unwrap(), Parsed::NeedsBytes(HEADER_BYTES + BODY_BYTES_MAX));
}

#[test]
fn open_chains_and_imports_run_alone() {
    let body = |flags: &[TransferFlags]| {
        let transfers: Vec<Transfer> =
            flags.iter().map(|flags| Transfer { flags: *flags, ..Transfer::default() }).collect();
        let mut body = Vec::new();
        push_all(&mut body, &transfers);
        body
    };
    let (none, linked, imported) = (TransferFlags::NONE, TransferFlags::LINKED, TransferFlags::IMPORTED);
    assert!(!runs_alone(Kind::CreateTransfers, &body(&[none])));
    assert!(!runs_alone(Kind::CreateTransfers, &body(&[linked, none])));
    assert!(runs_alone(Kind::CreateTransfers, &body(&[none, linked])));
    assert!(runs_alone(Kind::CreateTransfers, &body(&[none, imported])));
    assert!(runs_alone(Kind::LookupAccounts, &body(&[none])));
    let mut accounts = Vec::new();
    push_all(&mut accounts, &[Account { flags: AccountFlags::IMPORTED, ..Account::default() }]);
    assert!(runs_alone(Kind::CreateAccounts, &accounts));
    // The same bit has another meaning in a transfer.
    assert!(!runs_alone(Kind::CreateTransfers, &accounts));
}
