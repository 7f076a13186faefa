//! A limit on what one call may allocate, enforced in the allocator.
//!
//! Template fuel counts instructions, and forty of them that double a string ask
//! for a terabyte; an allocation that fails then aborts the whole server. Here a
//! call that goes over its budget unwinds instead. The hook that makes a failed
//! allocation unwind is behind an unstable feature name, which the build allows
//! for this crate alone (RUSTC_BOOTSTRAP=nibble_text).

use std::alloc::{set_alloc_error_hook, GlobalAlloc, Layout, System};
use std::any::Any;
use std::cell::Cell;
use std::panic::{catch_unwind, resume_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static BYTES_LEFT: Cell<usize> = const { Cell::new(0) };
    static BLOCKS_LEFT: Cell<usize> = const { Cell::new(0) };
}

struct Exceeded;

/// What a call may hold at once. Blocks bound how deep a value can nest, and
/// with it the stack that dropping or printing it takes.
#[derive(Clone, Copy)]
pub struct Budget {
    pub bytes: usize,
    pub blocks: usize,
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

fn take(bytes: usize, blocks: usize) -> bool {
    if !ARMED.get() {
        return true;
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

// SAFETY: every call is System's own; a null return is an allowed answer.
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
    // A panic under guard becomes an error: nothing for stderr, where hostile
    // files could otherwise write at will.
    let print = take_hook();
    set_hook(Box::new(move |info| {
        if !GUARDED.get() {
            print(info);
        }
    }));
}

fn on_failed_allocation(_: Layout) {
    // Not ours: the machine is out of memory, and std's abort follows.
    if ARMED.replace(false) {
        resume_unwind(Box::new(Exceeded));
    }
}

fn explain(payload: Box<dyn Any + Send>, budget: Budget) -> Failure {
    if payload.is::<Exceeded>() {
        return Failure::Invalid(format!(
            "needs more memory than allowed ({} bytes in {} blocks)",
            budget.bytes, budget.blocks
        ));
    }
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    Failure::Panic(text.unwrap_or("panic without a message").to_string())
}

/// Runs `work` so that neither a panic nor a huge allocation leaves it.
pub fn guarded<T>(budget: Budget, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(install_hooks);
    catch_unwind(AssertUnwindSafe(|| {
        BYTES_LEFT.set(budget.bytes);
        BLOCKS_LEFT.set(budget.blocks);
        let _disarm = Disarm { was_guarded: GUARDED.replace(true) };
        ARMED.set(true);
        work()
    }))
    .unwrap_or_else(|payload| Err(explain(payload, budget)))
}
