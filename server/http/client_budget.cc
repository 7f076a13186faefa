#include "server/http/client_budget.h"

#include <utility>

namespace nibble::http {

bool ClientBudget::Share::Hold(const std::string& principal, std::size_t amount) {
  if (amount > amount_) {
    if (!budget_.MakeRoom(*this, principal, amount - amount_)) return false;
    principal_ = principal;
    budget_.Add(*this, amount - amount_);
  } else {
    budget_.Subtract(*this, amount_ - amount);
  }
  return true;
}

void ClientBudget::Share::AwaitClient() {
  waits_since_ = std::chrono::steady_clock::now();
  budget_.waiting_.insert(this);
}

void ClientBudget::Share::Release() {
  EndWait();
  budget_.Subtract(*this, amount_);
}

void ClientBudget::Add(Share& share, std::size_t amount) {
  held_by_[share.principal_] += amount;  // first, because it may throw
  share.amount_ += amount;
  held_ += amount;
}

void ClientBudget::Subtract(Share& share, std::size_t amount) {
  if (amount == 0) return;
  share.amount_ -= amount;
  held_ -= amount;
  const auto held = held_by_.find(share.principal_);
  held->second -= amount;
  if (held->second == 0) held_by_.erase(held);
}

bool ClientBudget::MakeRoom(const Share& share, const std::string& principal, std::size_t more) {
  while (true) {
    const bool own_half = !principal.empty() && HeldBy(principal) + more > max_ / 2;
    if (!own_half && held_ + more <= max_) return true;
    Share* costliest = Costliest(own_half ? &principal : nullptr, share);
    if (costliest == nullptr) return HeldBy(principal) == share.amount_;
    costliest->Release();  // now, because its session ends later
    costliest->connection_.Close();
  }
}

std::size_t ClientBudget::HeldBy(const std::string& principal) const {
  const auto held = held_by_.find(principal);
  return held == held_by_.end() ? 0 : held->second;
}

ClientBudget::Share* ClientBudget::Costliest(const std::string* principal, const Share& except) const {
  const auto now = std::chrono::steady_clock::now();
  Share* costliest = nullptr;
  std::pair<std::size_t, double> most;  // held by the principal, amount times waiting time
  for (Share* share : waiting_) {
    const std::chrono::duration<double> waited = now - share->waits_since_;
    if (share == &except || share->amount_ == 0 || waited < patience_) continue;
    if (principal != nullptr && share->principal_ != *principal) continue;
    const std::pair cost(HeldBy(share->principal_), static_cast<double>(share->amount_) * waited.count());
    if (costliest != nullptr && cost <= most) continue;
    costliest = share;
    most = cost;
  }
  return costliest;
}

}  // namespace nibble::http
