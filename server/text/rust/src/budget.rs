//! Limits the memory and the processor time of one call, enforced in the allocator.
//!
//! Template fuel counts instructions, but forty instructions that double a string ask for
//! a terabyte, and the failed allocation would abort the whole server. Here a call that
//! exceeds its budget unwinds instead. Processor time is limited here too: one instruction
//! may read megabytes, or compare lists of lists for hours, but every iteration of a loop
//! allocates. The hook that makes a failed allocation unwind is an unstable feature, which
//! the build enables for this crate only (RUSTC_BOOTSTRAP=nibble_text).

use std::alloc::{set_alloc_error_hook, GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

thread_local! {
    // Whether guarded() runs on this thread: then panics are not printed.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    // Whether allocations count against the budget; false again once it is exceeded.
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static BYTES_LEFT: Cell<usize> = const { Cell::new(0) };
    static BLOCKS_LEFT: Cell<usize> = const { Cell::new(0) };
    // The limit that the running call of guarded() exceeded. A library that catches panics itself hides it.
    static EXCEEDED: Cell<Option<Exceeded>> = const { Cell::new(None) };
    // Limit of the thread's processor time.
    static LATEST_NS: Cell<u64> = const { Cell::new(0) };
    // Monotonic time before which the call cannot have used up its processor time.
    static CHECK_AT_NS: Cell<u64> = const { Cell::new(0) };
}

#[derive(Clone, Copy)]
enum Exceeded {
    Memory,
    Time,
}

/// Limits of one call: bytes and blocks allocated at the same time, and processor time.
/// The number of blocks limits the nesting of a value, and so the stack needed to drop or
/// print it.
#[derive(Clone, Copy)]
pub struct Budget {
    pub bytes: usize,
    pub blocks: usize,
    pub time: Duration,
}

impl Budget {
    pub const UNLIMITED: Budget =
        Budget { bytes: usize::MAX, blocks: usize::MAX, time: Duration::MAX };
}

pub enum Failure {
    Invalid(String),
    Panic(String),
}

impl Failure {
    pub fn into_text(self) -> String {
        match self {
            Failure::Invalid(text) | Failure::Panic(text) => text,
        }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure::Invalid(text)
    }
}

struct BudgetAllocator;

#[global_allocator]
static ALLOCATOR: BudgetAllocator = BudgetAllocator;

fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is ours.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn limit_time(time: Duration) {
    let Ok(time_ns) = u64::try_from(time.as_nanos()) else {
        return CHECK_AT_NS.set(u64::MAX);
    };
    LATEST_NS.set(now_ns(libc::CLOCK_THREAD_CPUTIME_ID).saturating_add(time_ns));
    CHECK_AT_NS.set(0);
}

/// Whether processor time is left. Reading it takes a system call, so this reads it only
/// after the coarse clock, which needs none, has advanced by the time that was left.
fn has_time() -> bool {
    let now = now_ns(libc::CLOCK_MONOTONIC_COARSE);
    if now < CHECK_AT_NS.get() {
        return true;
    }
    let left = LATEST_NS.get().saturating_sub(now_ns(libc::CLOCK_THREAD_CPUTIME_ID));
    CHECK_AT_NS.set(now.saturating_add(left));
    left > 0
}

fn take(bytes: usize, blocks: usize) -> bool {
    if !ARMED.get() {
        return true;
    }
    if !has_time() {
        return false;
    }
    match (BYTES_LEFT.get().checked_sub(bytes), BLOCKS_LEFT.get().checked_sub(blocks)) {
        (Some(bytes_left), Some(blocks_left)) => {
            BYTES_LEFT.set(bytes_left);
            BLOCKS_LEFT.set(blocks_left);
            true
        }
        _ => false,
    }
}

fn give_back(bytes: usize, blocks: usize) {
    if ARMED.get() {
        BYTES_LEFT.set(BYTES_LEFT.get().saturating_add(bytes));
        BLOCKS_LEFT.set(BLOCKS_LEFT.get().saturating_add(blocks));
    }
}

// SAFETY: every call is forwarded to System; returning null is allowed.
unsafe impl GlobalAlloc for BudgetAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size(), 1) {
            return std::ptr::null_mut();
        }
        System.alloc(layout)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        give_back(layout.size(), 1);
        System.dealloc(block, layout);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !take(new_size.saturating_sub(layout.size()), 0) {
            return std::ptr::null_mut();
        }
        give_back(layout.size().saturating_sub(new_size), 0);
        System.realloc(block, layout, new_size)
    }
}

struct Disarm {
    was_guarded: bool,
}

impl Drop for Disarm {
    fn drop(&mut self) {
        ARMED.set(false);
        GUARDED.set(self.was_guarded);
    }
}

fn install_hooks() {
    set_alloc_error_hook(on_failed_allocation);
    // A guarded panic becomes an error and is not printed: otherwise hostile files
    // could write to stderr at will.
    let print = take_hook();
    set_hook(Box::new(move |info| {
        if !GUARDED.get() {
            print(info);
        }
    }));
}

fn on_failed_allocation(_: Layout) {
    // If not armed, the machine is out of memory and std aborts.
    if ARMED.replace(false) {
        let exceeded = if has_time() { Exceeded::Memory } else { Exceeded::Time };
        EXCEEDED.set(Some(exceeded));
        resume_unwind(Box::new(exceeded));
    }
}

fn explain(payload: Box<dyn Any + Send>) -> Failure {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    Failure::Panic(text.unwrap_or("panic without a message").to_string())
}

fn explain_exceeded(exceeded: Exceeded, budget: Budget) -> Failure {
    Failure::Invalid(match exceeded {
        Exceeded::Memory if budget.blocks == usize::MAX => {
            format!("needs more memory than allowed ({} bytes)", budget.bytes)
        }
        Exceeded::Memory => format!(
            "needs more memory than allowed ({} bytes in {} blocks)",
            budget.bytes, budget.blocks
        ),
        Exceeded::Time => format!(
            "engine ran out of fuel: takes more than {} ms of processor time",
            budget.time.as_millis()
        ),
    })
}

/// Runs `work`; a panic or an allocation beyond the budget becomes a Failure. Ends `work`
/// at its first allocation after its time is used up.
pub fn guarded<T>(budget: Budget, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(install_hooks);
    EXCEEDED.set(None);
    let done = catch_unwind(AssertUnwindSafe(|| {
        BYTES_LEFT.set(budget.bytes);
        BLOCKS_LEFT.set(budget.blocks);
        limit_time(budget.time);
        let _disarm = Disarm { was_guarded: GUARDED.replace(true) };
        ARMED.set(true);
        work()
    }));
    match EXCEEDED.take() {
        Some(exceeded) => Err(explain_exceeded(exceeded, budget)),
        None => done.unwrap_or_else(|payload| Err(explain(payload))),
    }
}

/// Bytes that the last call of guarded() on this thread allocated and did not free; negative if it freed older blocks.
pub fn net_bytes(budget: Budget) -> i64 {
    budget.bytes as i64 - BYTES_LEFT.get() as i64
}
