//! Things that are lent out and come back: staging buffers and device slots.
//!
//! Owns the waiting. Invariant: an item is lent to one holder at a time, the one that came back first goes out first,
//! and nobody waits for a pool that is closed.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::DeviceFault;
use crate::error::{Error, Result};
use crate::sync::unpoisoned;

/// An item in hand, which goes back when dropped.
#[derive(Debug)]
pub(crate) struct Lent<T> {
    /// Always there until it is dropped.
    item: Option<T>,
    pool: Arc<Pool<T>>,
    pid: u32,
}

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item.as_ref().expect("it is in hand")
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.item.as_mut().expect("it is in hand")
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // In a forked child the pool may be locked by a thread that does not exist there.
        if process::id() != self.pid {
            std::mem::forget(self.item.take());
        } else if let Some(item) = self.item.take() {
            self.pool.lock().items.push_back(item);
            self.pool.changed.notify_all();
        }
    }
}

/// How often an item that is back but still busy is looked at: often at first, for copies that take microseconds.
const FIRST_LOOK: Duration = Duration::from_micros(20);
const LAST_LOOK: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Pool<T> {
    /// The device whose items they are.
    device: String,
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// Why nothing is lent any more.
    closed: Option<DeviceFault>,
}

impl<T> Pool<T> {
    pub(crate) fn new(device: &str, items: impl IntoIterator<Item = T>) -> Arc<Self> {
        Arc::new(Self {
            device: device.to_owned(),
            state: Mutex::new(State {
                items: items.into_iter().collect(),
                closed: None,
            }),
            changed: Condvar::new(),
        })
    }

    // A holder that panicked returned its item in one piece or not at all.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        unpoisoned(self.state.lock())
    }

    /// Waits until the first item is back and `ready`; an error of `ready` leaves it in its place.
    pub(crate) fn take(
        self: &Arc<Self>,
        mut ready: impl FnMut(&mut T) -> Result<bool>,
    ) -> Result<Lent<T>> {
        let mut look = FIRST_LOOK;
        let mut state = self.lock();
        loop {
            if let Some(fault) = &state.closed {
                return Err(Error::device(&self.device, fault.clone()));
            }
            let waited_for = match state.items.pop_front() {
                Some(mut item) => match ready(&mut item) {
                    Ok(true) => {
                        return Ok(Lent {
                            item: Some(item),
                            pool: Arc::clone(self),
                            pid: process::id(),
                        });
                    }
                    waits => {
                        state.items.push_front(item);
                        waits?;
                        Some(look)
                    }
                },
                None => None,
            };
            state = match waited_for {
                Some(time) => {
                    look = (look * 2).min(LAST_LOOK);
                    let waited = self.changed.wait_timeout(state, time);
                    unpoisoned(waited).0
                }
                None => {
                    let waited = self.changed.wait(state);
                    unpoisoned(waited)
                }
            };
        }
    }

    /// The item that came back first, or a new one where none is here.
    #[cfg(feature = "cuda")]
    pub(crate) fn take_or(self: &Arc<Self>, make: impl FnOnce() -> Result<T>) -> Result<Lent<T>> {
        let found = {
            let mut state = self.lock();
            if let Some(fault) = &state.closed {
                return Err(Error::device(&self.device, fault.clone()));
            }
            state.items.pop_front()
        };
        Ok(Lent {
            item: Some(found.map_or_else(make, Ok)?),
            pool: Arc::clone(self),
            pid: process::id(),
        })
    }

    /// Ends all waiting, now and later. The first reason stays.
    pub(crate) fn close(&self, fault: DeviceFault) {
        self.lock().closed.get_or_insert(fault);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn fault(taken: Result<Lent<i32>>) -> DeviceFault {
        match taken {
            Err(Error::Device { device, fault }) => {
                assert_eq!(device, "cuda:3");
                fault
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_that_came_back_goes_out_first_when_it_is_ready() {
        let pool = Pool::new("cuda:3", [1, 2]);
        let mut first = pool.take(|_| Ok(true)).unwrap();
        assert_eq!(*first, 1);
        *first = 3;
        drop(first);
        let mut looks = 0;
        let taken = pool.take(|item| {
            looks += 1;
            assert_eq!(*item, 2);
            Ok(looks == 5)
        });
        assert_eq!((*taken.unwrap(), looks), (2, 5));
        let failed = pool.take(|item| {
            assert_eq!(*item, 3);
            Err(Error::device("cuda:3", DeviceFault::NotBuilt))
        });
        assert_eq!(fault(failed), DeviceFault::NotBuilt);
        assert_eq!(*pool.take(|_| Ok(true)).unwrap(), 3);
    }

    #[test]
    fn closing_ends_the_waiting_for_items_and_for_readiness() {
        for items in [vec![], vec![1]] {
            let pool = Pool::new("cuda:3", items);
            let (waits, waiting) = mpsc::channel();
            thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let _ = waits.send(());
                    pool.take(|_| Ok(false))
                });
                let _ = waiting.recv();
                pool.close(DeviceFault::Closed);
                pool.close(DeviceFault::NoDriver);
                assert_eq!(fault(waiter.join().unwrap()), DeviceFault::Closed);
            });
            assert_eq!(fault(pool.take(|_| Ok(true))), DeviceFault::Closed);
        }
    }
}
