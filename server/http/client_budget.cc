#include "server/http/client_budget.h"

#include <algorithm>

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
  share.amount_ += amount;
  held_ += amount;
  held_by_[share.principal_] += amount;
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
  while (const std::string* crowding = Crowding(principal, more)) {
    Share* slowest = Slowest(*crowding, share);
    if (slowest == nullptr) return HeldBy(principal) == share.amount_;
    slowest->Release();  // its session ends later
    slowest->connection_.Close();
  }
  return true;
}

std::size_t ClientBudget::HeldBy(const std::string& principal) const {
  const auto held = held_by_.find(principal);
  return held == held_by_.end() ? 0 : held->second;
}

const std::string* ClientBudget::Crowding(const std::string& principal, std::size_t more) const {
  if (!principal.empty() && HeldBy(principal) + more > max_ / 2) return &principal;
  if (held_ + more <= max_) return nullptr;
  const auto most = std::max_element(held_by_.begin(), held_by_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == held_by_.end() ? &principal : &most->first;
}

ClientBudget::Share* ClientBudget::Slowest(const std::string& principal, const Share& except) const {
  const auto now = std::chrono::steady_clock::now();
  Share* slowest = nullptr;
  double most = 0;
  for (Share* share : waiting_) {
    const std::chrono::duration<double> waited = now - share->waits_since_;
    if (share == &except || share->amount_ == 0 || share->principal_ != principal || waited < patience_) continue;
    const double cost = static_cast<double>(share->amount_) * waited.count();
    if (slowest != nullptr && cost <= most) continue;
    slowest = share;
    most = cost;
  }
  return slowest;
}

}  // namespace nibble::http
