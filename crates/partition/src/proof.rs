//! Why [`balanced`](crate::balanced()) is right: the proof of its optimum, of its ties and of its cost.
//!
//! A list of `n` layers with weights of at least 0 is cut into `k` non-empty stages, `0 < k <= n`. Weights
//! are whole numbers (floats are whole multiples of a power of two), so sums are exact. Write `P[i]` for
//! the sum of the first `i` weights; a stage from `a` to `b`, `a < b`, weighs `P[b] - P[a]`.
//!
//! The answer is the best of all cuts in this order: the heaviest stage as light as possible, then the
//! lightest stage as heavy as possible, then the first boundary as late as possible, then the second, and
//! so on. No two cuts are equal in all of these, so there is exactly one answer.
//!
//! # The heaviest stage
//!
//! For a maximum `m`, fill each stage as far as `m` lets it. By induction no cuts with stages of at most
//! `m` are further after `j` stages. So the end is reached within `k` stages exactly when such cuts into
//! *at most* `k` stages exist; and they then exist with exactly `k`, as `k <= n` and a stage of two or
//! more layers can be split without becoming heavier. What holds for `m` holds for `m + 1`, so the least
//! such `m`, called `M`, is found by bisection. It starts from the larger of the heaviest layer and the
//! mean, below which nothing fits, and ends at twice that, where everything does: a stage that is full at
//! more than the mean leaves less than the mean for each of the others.
//!
//! # The lightest stage
//!
//! Let a *step* from `a` to `b` be a stage with `a < b` and `L <= P[b] - P[a] <= M`. Cuts with a lightest
//! stage of at least `L` are paths of exactly `k` steps from 0 to `n`; their heaviest stage is `M`, since
//! none has a lighter one. What holds for `L` holds for `L - 1`, so the greatest `L` is found by
//! bisection as well: once one can tell whether a path of exactly `k` steps exists.
//!
//! **Lemma.** Let there be a path from `i` to `n` with places `A[0..=x]` and one from `j` to `n` with places
//! `B[0..=y]`. If for some `d >= 0` with `x + d < y`, `B[d] >= i`, then there is a path from `i` with
//! `y - d` steps; and for `d = 0` also one from `j` with `x` steps.
//!
//! *Proof.* Compare `B[t + d]` with `A[t]` for `t = 0..=x`. At `t = 0`, `B[d] >= i = A[0]`. At `t = x`,
//! `B[x + d] <= n = A[x]`. So there is a `t` with `B[t + d] >= A[t]` and `B[t + 1 + d] <= A[t + 1]`: the
//! step of `B` from there lies within the step of `A`. A stage from `A[t]` to `B[t + 1 + d]` holds the step
//! of `B` and lies within that of `A`, so it is not empty and weighs at least `L` and at most `M`; so does
//! a stage from `B[t + d]` to `A[t + 1]`. Follow `A` up to `A[t]`, make the first of these steps and go on
//! along `B`: that makes `t + 1 + (y - t - 1 - d) = y - d` steps from `i`. With `d = 0`, follow `B` up to
//! `B[t]`, make the second and go on along `A`: that makes `x` steps from `j`. ∎
//!
//! Two things follow.
//!
//! - *No gaps.* With `j = i`, `B[d] >= i` always holds: if the end can be reached with `x` and with `y > x`
//!   steps, then with every number in between. So the numbers of steps from a place are all those between
//!   the fewest and the most, or none, and a path of exactly `k` steps exists when `k` lies between the
//!   two numbers at 0.
//! - *Order.* Let `i < j` both reach the end. Neither the fewest nor the most steps from `j` are more than
//!   those from `i`: with the fewest from `i` for `x` and the fewest from `j` for `y`, `y > x` would give a
//!   path of `x` steps from `j`; with the most for both, `y > x` would give one of `y` steps from `i`.
//!
//! The two numbers are computed for all places from the end of the list to its start. The steps from `a`
//! end in a window of places, both of whose ends move left with `a`. By the order, the fewest steps go
//! through the last place of the window that reaches the end, and the most through the first; two
//! markers that only move left find them, so a pass takes constant time a place.
//!
//! The lemma needs of weights only that a stage within another is no heavier. It fails when stages differ,
//! which is why [`partition`](crate::partition()) then uses a table over stages and places instead.
//!
//! # The order of ties
//!
//! With `L` and `M` fixed, every path of `k` steps is equally good. The first boundary is the last place
//! within a step from which `k - 1` steps reach the end, which the two numbers at that place tell by the
//! lemma; and so on for the others. Boundaries that are as late as possible make early stages long:
//! equal weights get the cuts of [`uniform`](crate::uniform()).
//!
//! # The cost
//!
//! With `s` for the sum of all weights: one filling takes `O(k log n)`, by doubling steps; one pass over
//! the places takes `O(n)`; each is done `O(log s)` times. A pass that finds cuts raises the lower end of
//! the bisection to their lightest stage; one that finds none lowers the upper end to the heaviest stage
//! below the minimum that it tried. So the number of passes is also within the logarithm of the number
//! of different stages, and large weights cost little more than small ones.
//!
//! # Examples
//!
//! ```
//! use brigade_partition::balanced;
//!
//! // 6 is the least maximum, and 5 the greatest minimum beside it. Two cuts are left, and the one with
//! // the longer first stage is taken.
//! let weights = [2, 3, 1, 5, 1, 4];
//! assert_eq!(balanced(&weights, 3)?.boundaries(), [0, 3, 4, 6]);
//! # Ok::<(), brigade_partition::PartitionError>(())
//! ```
