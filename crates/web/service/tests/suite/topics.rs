//! Notices and long polls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use batzen_http::{Drain, Method, Request};
use batzen_service::{Tag, Topic, TopicKey, poll_deadline, tag};
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;
use tokio::time::Instant;

fn store() -> Store {
    Store::new(MemoryBackend::new())
}

#[tokio::test]
async fn a_poll_ends_with_the_event_that_it_waits_for() {
    let topic = Topic::<Tag>::new(&store(), "orders", 1);
    let poll = topic.poll(tag(&[7; 32])).unwrap();
    assert!(topic.poll(tag(&[8; 32])).is_none() && topic.waiting() == 1);
    let value = AtomicU64::new(0);
    let read = async || Ok(value.load(Ordering::SeqCst));
    let events = async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
            value.fetch_add(1, Ordering::SeqCst);
            topic.announce(&[tag(&[7; 32])]);
        }
    };
    let mut request = Request::local(Method::GET, "/", "");
    let deadline = poll_deadline(Some(60_000), Duration::from_secs(60)).unwrap();
    let until = poll.until(&mut request, deadline, 0, |found| *found == 3, read);
    let (found, ()) = tokio::join!(until, events);
    assert_eq!(found.unwrap(), 3);
    topic.announced().await;
    let late = topic.poll(tag(&[7; 32])).unwrap();
    let found = late.until(&mut request, Instant::now(), 3, |found| *found == 4, read).await;
    assert_eq!((found.unwrap(), topic.waiting()), (3, 0));
}

#[tokio::test]
async fn an_event_wakes_only_its_key_and_topic() {
    let store = store();
    let (list, lists) = (Topic::<String>::new(&store, "list", 2), Topic::<String>::new(&store, "lists", 2));
    let key = |name: &str| name.to_owned();
    let mut polls =
        [list.poll(key("a")).unwrap(), list.poll(key("b")).unwrap(), lists.poll(key("a")).unwrap()];
    list.announce(&[key("a")]);
    let mut woken = [false; 3];
    for (poll, woken) in polls.iter_mut().zip(&mut woken) {
        *woken = poll.wait(Instant::now() + Duration::from_millis(1), &Drain::new()).await;
    }
    assert_eq!(woken, [true, false, false]);
}

#[test]
fn keys_survive_a_notice() {
    let key = tag(&[3; 32]);
    assert_eq!(Tag::read(&key.write()), Some(key));
    assert_eq!(poll_deadline(Some(0), Duration::MAX), None);
}
